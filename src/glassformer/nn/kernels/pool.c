// The threads are those of torch's OpenMP pool: Python finds its GOMP_parallel and hands it over, since a second pool
// would fight with it for the cores. Without one the calling thread computes alone.

#include "pool.h"

#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

enum { NOTHING = 0x7fffffff };  // a piece that there never is

typedef void parallel_fn(void (*work)(void *), void *data, unsigned threads, unsigned flags);

typedef struct {
    piece_fn *compute;
    const void *task;
    long pieces;
    atomic_long next;
} Work;

// Threads that stay together for a program. `place` counts works in its upper half and pieces in its lower: a thread
// that comes late for one work cannot take a piece of the next.
typedef struct {
    void (*program)(void *);
    void *data;
    atomic_int arrived, over;
    _Alignas(64) atomic_uint_fast64_t place;
    _Atomic(piece_fn *) compute;
    _Atomic(const void *) task;
    atomic_long pieces;
    _Alignas(64) atomic_long done;
} Team;

static parallel_fn *parallel;
static _Thread_local Team *team;  // that the calling thread leads

EXPORT int kernels_version(void) { return 5; }

EXPORT void kernels_pool(void *function) { parallel = (parallel_fn *)function; }

static void until_done(void *data) {
    Work *work = data;
    for (long piece; (piece = atomic_fetch_add(&work->next, 1)) < work->pieces;) work->compute(work->task, piece);
}

static void wait_a_little(long *waited) {
    if (++*waited % 4096) __builtin_ia32_pause();
    else sched_yield();  // more threads than cores: let the one work that we wait for
}

// The pieces of the work under way, as long as there are any; whether there was one.
static int take_pieces(Team *t) {
    int some = 0;
    for (;;) {
        uint_fast64_t place = atomic_load_explicit(&t->place, memory_order_acquire);
        piece_fn *compute = atomic_load_explicit(&t->compute, memory_order_relaxed);
        const void *task = atomic_load_explicit(&t->task, memory_order_relaxed);
        const long piece = (long)(place & 0xffffffff), pieces = atomic_load_explicit(&t->pieces, memory_order_relaxed);
        if (piece >= pieces) return some;
        if (!atomic_compare_exchange_weak(&t->place, &place, place + 1)) continue;  // also when the work was another
        compute(task, piece);
        atomic_fetch_add_explicit(&t->done, 1, memory_order_release);
        some = 1;
    }
}

static void join_team(void *data) {
    Team *t = data;
    if (atomic_fetch_add(&t->arrived, 1) == 0) {
        team = t;
        t->program(t->data);
        team = NULL;
        atomic_store(&t->over, 1);
    }
    for (long waited = 0; !atomic_load_explicit(&t->over, memory_order_acquire);)
        if (take_pieces(t)) waited = 0;
        else wait_a_little(&waited);
}

static void run_by_team(Team *t, piece_fn *compute, const void *task, long pieces) {
    const uint_fast64_t work = ((atomic_load(&t->place) >> 32) + 1) << 32;
    atomic_store_explicit(&t->place, work | NOTHING, memory_order_release);  // while the rest changes
    atomic_store_explicit(&t->compute, compute, memory_order_release);
    atomic_store_explicit(&t->task, task, memory_order_release);
    atomic_store_explicit(&t->pieces, pieces, memory_order_release);
    atomic_store_explicit(&t->done, 0, memory_order_release);
    atomic_store_explicit(&t->place, work, memory_order_release);
    take_pieces(t);
    for (long waited = 0; atomic_load_explicit(&t->done, memory_order_acquire) < pieces;) wait_a_little(&waited);
}

void run_pieces(piece_fn *compute, const void *task, long pieces, int threads) {
    if (threads > pieces) threads = (int)pieces;
    if (team && threads > 1) {
        run_by_team(team, compute, task, pieces);
        return;
    }
    Work work = {compute, task, pieces, 0};
    if (parallel == NULL || team || threads < 2) until_done(&work);
    else parallel(until_done, &work, (unsigned)threads, 0);
}

void run_team(void (*program)(void *), void *data, int threads) {
    Team t = {.program = program, .data = data};
    if (parallel == NULL || team || threads < 2) program(data);
    else parallel(join_team, &t, (unsigned)threads, 0);
}
