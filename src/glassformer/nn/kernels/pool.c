// The threads are those of torch's OpenMP pool: Python finds its GOMP_parallel and hands it over, since a second pool
// would fight with it for the cores. Without one the calling thread computes alone.

#include "pool.h"

#include <stdatomic.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

typedef void parallel_fn(void (*work)(void *), void *data, unsigned threads, unsigned flags);

typedef struct {
    piece_fn *compute;
    const void *task;
    long pieces;
    atomic_long next;
} Work;

static parallel_fn *parallel;

EXPORT int kernels_version(void) { return 2; }

EXPORT void kernels_pool(void *function) { parallel = (parallel_fn *)function; }

static void until_done(void *data) {
    Work *work = data;
    for (long piece; (piece = atomic_fetch_add(&work->next, 1)) < work->pieces;) work->compute(work->task, piece);
}

void run_pieces(piece_fn *compute, const void *task, long pieces, int threads) {
    Work work = {compute, task, pieces, 0};
    if (threads > pieces) threads = (int)pieces;
    if (parallel == NULL || threads < 2) until_done(&work);
    else parallel(until_done, &work, (unsigned)threads, 0);
}
