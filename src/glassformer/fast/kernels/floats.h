// What bf16.c and fp32.c share: a tile of rows times panels, from the first input to the last.

#pragma once
#include "piece.h"

// STEP inputs are multiplied at a time, of SIZE bytes together; in a panel they lie as (inputs / STEP, 16, STEP). BLOCK
// steps of 32 outputs are 32 KiB, most of the first cache.
enum { SIZE = 4, BLOCK = 256, AHEAD = 4096 };

typedef struct {
    Rows rows;
    const char *weight;
    char *tiled;  // the rows of a chunk as they are read: block by block, tile by tile, step by step
    long steps;
} Product;

enum { TILES = (CHUNK + FLOAT_ROWS - 1) / FLOAT_ROWS };  // of a chunk, at most

// A tile of a chunk. Rows as they come lie far apart, where they meet in the same few lines of the caches.
static void lay_tile(const void *task, long number) {
    const Product *p = task;
    const long chunk = number / TILES * CHUNK, all = p->rows.rows - chunk < CHUNK ? p->rows.rows - chunk : CHUNK;
    long row = 0, left = (all + FLOAT_ROWS - 1) / FLOAT_ROWS;
    if (number % TILES >= left) return;
    for (long before = number % TILES; before > 0; before--, left--) row += (all - row) / left;
    const long rows = (all - row) / left;
    const char *x = (const char *)p->rows.x + (chunk + row) * p->steps * SIZE;
    for (long first = 0; first < p->steps; first += BLOCK) {
        const long end = first + BLOCK < p->steps ? first + BLOCK : p->steps;
        char *to = p->tiled + (chunk * p->steps + all * first + row * (end - first)) * SIZE;
        for (long r = 0; r < rows; r++)
            for (long k = first; k < end; k++)
                memcpy(to + ((k - first) * rows + r) * SIZE, x + (r * p->steps + k) * SIZE, SIZE);
    }
}

// R rows times P panels, of the steps `first` to `end`; the panels lie `stride` bytes apart. The sums so far are in
// `sums`. Meanwhile what lies `ahead` bytes on is fetched.
INLINE void tile(const int R, const int P, const Product *p, const char *weight, long stride, const char *x,
                 long first, long end, long ahead, float *sums) {
    floats y[FLOAT_ROWS][PANELS];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < P; i++)
        y[r][i] = first ? load(sums + r * WIDTH + i * PANEL) : zeros();
    for (long k = first; k < end; k++, weight += SIZE * PANEL, x += SIZE * R) {
        ints w[PANELS];
        UNROLL for (int i = 0; i < P; i++) {
            w[i] = load_ints(weight + i * stride);
            fetch(weight + i * stride + ahead);
        }
        UNROLL for (int r = 0; r < R; r++) {
            ints one = all_four(x + r * SIZE);
            UNROLL for (int i = 0; i < P; i++) y[r][i] = STEP(y[r][i], w[i], one);
        }
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < P; i++)
        store(sums + r * WIDTH + i * PANEL, y[r][i]);
}

// `count` rows times P panels, in tiles of nearly the same size.
INLINE void tiles(const int P, const Product *p, const char *weight, long stride, const char *x, long count,
                  long first, long end, float *sums) {
    for (long left = (count + FLOAT_ROWS - 1) / FLOAT_ROWS; left > 0; left--) {
        const long rows = count / left;
        SWITCH_ROWS(rows, FLOAT_ROWS, tile(R, P, p, weight, stride, x, first, end, AHEAD, sums))
        count -= rows, x += rows * (end - first) * SIZE, sums += rows * WIDTH;
    }
}

// A tile of rows times P panels, which waits for the memory: the last steps fetch the first of the next panels.
INLINE void straight(const int P, const Product *p, const char *weight, long stride, const char *x, long rows,
                     float *sums) {
    const long turn = p->steps > AHEAD / (SIZE * PANEL) ? p->steps - AHEAD / (SIZE * PANEL) : 0;
    SWITCH_ROWS(rows, FLOAT_ROWS, {
        for (long first = 0; first < p->steps;) {
            const long block = first - first % BLOCK;
            const long stop = block + BLOCK < p->steps ? block + BLOCK : p->steps;
            const long end = first < turn && turn < stop ? turn : stop;
            const char *from = x + first * rows * SIZE;
            tile(R, P, p, weight + first * SIZE * PANEL, stride, from, first, end,
                 first < turn ? AHEAD : AHEAD + (P - 1) * stride, sums);
            first = end;
        }
    })
}

static void piece(const void *task, long number) {
    const Product *p = task;
    const Place at = place(&p->rows, number);
    const long stride = p->steps * SIZE * PANEL;
    float sums[CHUNK * WIDTH];
    if (at.rows <= FLOAT_ROWS) {
        const char *x = p->tiled + at.row * p->steps * SIZE;
        for (long i = 0; i < at.panels; i += PANELS) {
            const char *weight = p->weight + (at.panel + i) * stride;
            if (at.panels - i >= PANELS) straight(PANELS, p, weight, stride, x, at.rows, sums + i * PANEL);
            else straight(1, p, weight, stride, x, at.rows, sums + i * PANEL);
        }
        finish(&p->rows, at, sums);
        return;
    }
    for (long first = 0; first < p->steps; first += BLOCK) {
        const long end = first + BLOCK < p->steps ? first + BLOCK : p->steps;
        const char *x = p->tiled + (at.row * p->steps + at.rows * first) * SIZE;
        for (long i = 0; i < at.panels; i += PANELS) {
            const char *weight = p->weight + (at.panel + i) * stride + first * SIZE * PANEL;
            if (at.panels - i >= PANELS) tiles(PANELS, p, weight, stride, x, at.rows, first, end, sums + i * PANEL);
            else tiles(1, p, weight, stride, x, at.rows, first, end, sums + i * PANEL);
        }
    }
    finish(&p->rows, at, sums);
}

// `scratch` is as large as x; one row lies as it must already.
static void compute(Rows rows, const void *weight, void *scratch, long steps, int threads) {
    const long pieces = pieces_of(&rows, threads);
    const Product p = {rows, weight, rows.rows > 1 ? scratch : (char *)rows.x, steps};
    if (rows.rows > 1) run_pieces(lay_tile, &p, (rows.rows + CHUNK - 1) / CHUNK * TILES, rows.rows < 8 ? 1 : threads);
    run_pieces(piece, &p, pieces, threads);
}
