// What all products share: rows, and the piece of the result that a thread computes at a time.

#pragma once
#include "pool.h"
#include "rows.h"

enum {
    CHUNK = 256,        // rows of a piece, at most
    WIDTH = 8 * PANEL,  // outputs of a piece, at most
};

typedef struct {
    const void *x;      // (rows, inputs) fp32 or bf16
    const float *bias;  // (outputs) or null
    void *y;            // (rows, outputs), as x; a row lies `stride` numbers after the other
    long rows, inputs, outputs, stride;
    int bf16;
    long panels;  // of a piece
} Rows;

typedef struct { long row, rows, panel, panels; } Place;

// Many rows are read again for each piece of outputs, so pieces are wide then; few rows are handed out in smaller ones,
// each long enough to be read ahead in. Neither so wide that threads would have nothing to do.
INLINE long pieces_of(Rows *rows, int threads) {
    const long chunks = (rows->rows + CHUNK - 1) / CHUNK, panels = (rows->outputs + PANEL - 1) / PANEL;
    rows->panels = panels * chunks < 32 * threads ? 2 : rows->rows > 64 ? 8 : 4;
    return (panels + rows->panels - 1) / rows->panels * chunks;
}

// Pieces of the same weights follow each other, so that these are still in a cache.
INLINE Place place(const Rows *rows, long piece) {
    const long chunks = (rows->rows + CHUNK - 1) / CHUNK, row = piece % chunks * CHUNK;
    const long panel = piece / chunks * rows->panels, panels = (rows->outputs + PANEL - 1) / PANEL - panel;
    const long left = rows->rows - row;
    return (Place){row, left < CHUNK ? left : CHUNK, panel, panels < rows->panels ? panels : rows->panels};
}

// Sums (rows, WIDTH) plus bias, into y.
INLINE void finish(const Rows *rows, Place at, const float *sums) {
    const long first = at.panel * PANEL, left = rows->outputs - first;
    const long count = left < at.panels * PANEL ? left : at.panels * PANEL;
    float bias[WIDTH] = {0};
    if (rows->bias) memcpy(bias, rows->bias + first, count * sizeof *bias);
    for (long r = 0; r < at.rows; r++, sums += WIDTH) {
        const long to = (at.row + r) * rows->stride + first;
        for (long i = 0; i < count; i += PANEL) {
            const floats y = load(sums + i);
            put(rows->y, to + i, to + count, rows->bf16, rows->bias ? add(y, load(bias + i)) : y);
        }
    }
}

// What is to be done with R rows, where R must be known when it is compiled: up to MOST, at most 12.
#define SWITCH_ROWS(rows, MOST, ...)                                                                                   \
    switch (rows) {                                                                                                    \
        ROW_CASE(1, MOST, __VA_ARGS__) ROW_CASE(2, MOST, __VA_ARGS__) ROW_CASE(3, MOST, __VA_ARGS__)                   \
        ROW_CASE(4, MOST, __VA_ARGS__) ROW_CASE(5, MOST, __VA_ARGS__) ROW_CASE(6, MOST, __VA_ARGS__)                   \
        ROW_CASE(7, MOST, __VA_ARGS__) ROW_CASE(8, MOST, __VA_ARGS__) ROW_CASE(9, MOST, __VA_ARGS__)                   \
        ROW_CASE(10, MOST, __VA_ARGS__) ROW_CASE(11, MOST, __VA_ARGS__) ROW_CASE(12, MOST, __VA_ARGS__)                \
    }
#define ROW_CASE(rows, MOST, ...)                                                                                      \
    case rows: {                                                                                                       \
        enum { R = rows <= MOST ? rows : 1 };                                                                          \
        if (rows <= MOST) __VA_ARGS__;                                                                                 \
        break;                                                                                                         \
    }
