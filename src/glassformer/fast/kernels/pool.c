// The threads are those of torch's OpenMP pool: Python finds its GOMP_parallel and hands it over, since a second pool
// would fight with it for the cores. Without one the calling thread computes alone.

#include "pool.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <pthread.h>
#endif

#define EXPORT __attribute__((visibility("default")))

enum { NOTHING = 0x7fffffff };  // a piece that there never is
enum { SPINS = 3000 };           // looks before a thread sleeps, less than a tenth of a millisecond

typedef void parallel_fn(void (*work)(void *), void *data, unsigned threads, unsigned flags);

typedef struct {
    piece_fn *compute;
    const void *task;
    long pieces;
    atomic_long next;
} Work;

// A count that threads wait for. Who spins on a busy machine takes the core from the thread that it waits for, so after
// a short spin they sleep until the count moves.
typedef struct {
    _Alignas(64) atomic_uint count;
    atomic_int sleepers;
} Gate;

// Threads that stay together for a program. `place` counts works in its upper half and pieces in its lower: a thread
// that comes late for one work cannot take a piece of the next.
typedef struct {
    void (*program)(void *);
    void *data;
    atomic_int arrived, over;
    Gate begun, finished;  // move with each work and at the end; when a work's last piece is done
    _Alignas(64) atomic_uint_fast64_t place;
    _Atomic(piece_fn *) compute;
    _Atomic(const void *) task;
    atomic_long pieces;
    _Alignas(64) atomic_long done;
} Team;

static parallel_fn *parallel;
static _Thread_local Team *team;  // that the calling thread leads

EXPORT int kernels_version(void) { return 6; }

EXPORT void kernels_pool(void *function) { parallel = (parallel_fn *)function; }

static void until_done(void *data) {
    Work *work = data;
    for (long piece; (piece = atomic_fetch_add(&work->next, 1)) < work->pieces;) work->compute(work->task, piece);
}

static void pause_briefly(void) {
#ifdef __x86_64__
    __builtin_ia32_pause();
#else
    __asm__ volatile("isb");  // tens of cycles, where `yield` costs one
#endif
}

#ifdef __linux__
static void sleep_while(Gate *gate, unsigned count) {
    while (atomic_load(&gate->count) == count)
        syscall(SYS_futex, &gate->count, FUTEX_WAIT_PRIVATE, count, NULL, NULL, 0);
}

static void wake(Gate *gate) { syscall(SYS_futex, &gate->count, FUTEX_WAKE_PRIVATE, 0x7fffffff, NULL, NULL, 0); }
#else
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // of all gates
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;

static void sleep_while(Gate *gate, unsigned count) {
    pthread_mutex_lock(&lock);
    while (atomic_load(&gate->count) == count) pthread_cond_wait(&moved, &lock);
    pthread_mutex_unlock(&lock);
}

static void wake(Gate *gate) {
    (void)gate;
    pthread_mutex_lock(&lock);  // a sleeper that looked before the count moved waits already
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&lock);
}
#endif

static void wait_beyond(Gate *gate, unsigned count) {
    for (int spin = 0; spin < SPINS; spin++) {
        if (atomic_load_explicit(&gate->count, memory_order_acquire) != count) return;
        pause_briefly();
    }
    atomic_fetch_add(&gate->sleepers, 1);  // before the last look: who moves the count looks for sleepers after it
    sleep_while(gate, count);
    atomic_fetch_sub(&gate->sleepers, 1);
}

static void move(Gate *gate) {
    atomic_fetch_add(&gate->count, 1);
    if (atomic_load(&gate->sleepers)) wake(gate);
}

// Compute pieces of the work under way, as long as there are any.
static void take_pieces(Team *t) {
    for (;;) {
        uint_fast64_t place = atomic_load_explicit(&t->place, memory_order_acquire);
        piece_fn *compute = atomic_load_explicit(&t->compute, memory_order_relaxed);
        const void *task = atomic_load_explicit(&t->task, memory_order_relaxed);
        const long piece = (long)(place & 0xffffffff), pieces = atomic_load_explicit(&t->pieces, memory_order_relaxed);
        if (piece >= pieces) return;
        if (!atomic_compare_exchange_weak(&t->place, &place, place + 1)) continue;  // also when the work was another
        compute(task, piece);
        if (atomic_fetch_add_explicit(&t->done, 1, memory_order_acq_rel) + 1 == pieces) move(&t->finished);
    }
}

static void join_team(void *data) {
    Team *t = data;
    if (atomic_fetch_add(&t->arrived, 1) == 0) {
        team = t;
        t->program(t->data);
        team = NULL;
        atomic_store(&t->over, 1);
        move(&t->begun);
    }
    for (;;) {
        const unsigned begun = atomic_load(&t->begun.count);
        if (atomic_load(&t->over)) return;
        take_pieces(t);
        wait_beyond(&t->begun, begun);
    }
}

static void run_by_team(Team *t, piece_fn *compute, const void *task, long pieces) {
    const unsigned finished = atomic_load(&t->finished.count);
    const uint_fast64_t work = ((atomic_load(&t->place) >> 32) + 1) << 32;
    atomic_store_explicit(&t->place, work | NOTHING, memory_order_release);  // while the rest changes
    atomic_store_explicit(&t->compute, compute, memory_order_release);
    atomic_store_explicit(&t->task, task, memory_order_release);
    atomic_store_explicit(&t->pieces, pieces, memory_order_release);
    atomic_store_explicit(&t->done, 0, memory_order_release);
    atomic_store_explicit(&t->place, work, memory_order_release);
    move(&t->begun);
    take_pieces(t);
    wait_beyond(&t->finished, finished);
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
