// What int8.c and int4.c share: rows to whole numbers, and a tile of rows times unsigned bytes.
//
//     for each group of 32 inputs, from the first to the last:
//         sum = the 32 products of whole numbers                       in int32, exact
//         y += float(sum) * (weight's scale * row's scale)             in fp32, each step rounded
//
// vpdpbusd and usdot multiply unsigned bytes by signed ones, so weights carry an offset (128 or 8). It is taken out by
// starting each group's sum at -offset * (sum of the row's 32 numbers), which does not depend on the output.

#pragma once
#include "piece.h"

enum { AHEAD = 4096 };  // bytes of a panel that are fetched before they are needed
enum { BLOCK = 32 };  // groups that are multiplied at a time: 32 outputs of them are 32 KiB, most of the first cache

typedef enum { BYTES, SMALL_BYTES, NIBBLES } Kind;  // of weights; small ones lie from 0 to 15

typedef struct {
    Rows rows;
    const uint8_t *weight;   // (panels, groups, 8 or 4, 16, 4)
    const uint16_t *scales;  // (panels, groups, 16) fp16
    int8_t *whole;           // (rows, groups, 32)
    float *row_scale;        // (rows, groups)
    int32_t *start;          // (rows, groups): minus the offset's part of a group's sum
    long groups;
    int offset;
} Product;

// One group of a row: the greatest magnitude becomes 127.
INLINE void quantize_group(const Product *p, floats low, floats high, long at) {
    ints magnitude = all_int(0x7fffffff);
    int32_t bits = greatest_int(greater_int(and_int(bits_of(low), magnitude), and_int(bits_of(high), magnitude)));
    float largest, inverse = 0, scale = 0;  // compared as whole numbers: what is no number is the greatest of all
    memcpy(&largest, &bits, 4);
    if (bits >= 0x7f800000) {
        largest = 0, bits = 0x7fc00000;
        memcpy(&scale, &bits, 4);
        low = high = zeros();
    } else if (largest > 1e-30f) {
        inverse = 127 / largest, scale = largest / 127;
    }
    ints a = int_of(mul(low, all(inverse))), b = int_of(mul(high, all(inverse)));
    store_bytes(p->whole + at * GROUP, a);
    store_bytes(p->whole + at * GROUP + 16, b);
    p->row_scale[at] = scale;
    p->start[at] = -p->offset * sum_int(add_int(a, b));
}

static void quantize_row(const void *task, long row) {
    const Product *p = task;
    for (long group = 0; group < p->groups; group++) {
        long first = row * p->rows.inputs + group * GROUP, left = p->rows.inputs - group * GROUP;
        uint16_t some[GROUP] = {0};
        float few[GROUP] = {0};
        floats low, high;
        if (p->rows.bf16) {
            const uint16_t *from = (const uint16_t *)p->rows.x + first;
            if (left < GROUP) from = memcpy(some, from, 2 * left);
            low = load_bf16(from), high = load_bf16(from + 16);
        } else {
            const float *from = (const float *)p->rows.x + first;
            if (left < GROUP) from = memcpy(few, from, 4 * left);
            low = load(from), high = load(from + 16);
        }
        quantize_group(p, low, high, row * p->groups + group);
    }
}

// Sixty-four weights of a group: step k of 8, as bytes.
INLINE ints weights_at(const Kind kind, const uint8_t *group, int k) {
    if (kind != NIBBLES) return load_ints(group + 64 * k);
    ints both = load_ints(group + 64 * (k % 4));
    return and_int(k < 4 ? both : down4(both), all_int(0x0f0f0f0f));
}

// Where weights lie: those of a panel's first group, how far it is to the next panel's, and their scales.
typedef struct { const uint8_t *first; long stride; const uint16_t *scales; } Weights;

enum { WIDE = GROUP * PANEL };  // bytes of a panel's group, of nibbles half

#ifdef ROW_PAIRS

// The products of a group: of R rows times a panel, eight inputs at a time of two rows, four of a last one.
INLINE void add_products(const int R, const int P, const Kind kind, const Product *p, Weights weights, Weights next,
                         long at, ints sum[INT_ROWS][PANELS]) {
    _Static_assert(PANELS == 1, "a tile of one panel");
    pairs both[INT_ROWS / 2];
    UNROLL for (int r = 0; r < R / 2; r++) both[r] = paired(sum[2 * r][0], sum[2 * r + 1][0]);
    UNROLL for (int k = 0; k < 8; k += 2) {
        const ints w = weights_at(kind, weights.first, k), after = weights_at(kind, weights.first, k + 1);
        const pairs two = paired(w, after);
        fetch(next.first + (kind == BYTES ? 64 : 32) * k);
        if (kind == BYTES) fetch(next.first + 64 * (k + 1));
        UNROLL for (int r = 0; r < R; r++) {
            const int8_t *x = p->whole + (at + r * p->groups) * GROUP + 4 * k;
            if (r % 2 == 0 && r + 1 < R) both[r / 2] = dot8(both[r / 2], two, x, x + p->groups * GROUP);
            else if (r % 2 == 0) sum[r][0] = dot4(dot4(sum[r][0], w, all_four(x)), after, all_four(x + 4));
        }
    }
    UNROLL for (int r = 0; r < R / 2; r++)
        sum[2 * r][0] = first_of(both[r]), sum[2 * r + 1][0] = second_of(both[r]);
}

#else

// The products of a group: of R rows times P panels, four inputs of sixteen outputs at a time.
INLINE void add_products(const int R, const int P, const Kind kind, const Product *p, Weights weights, Weights next,
                         long at, ints sum[INT_ROWS][PANELS]) {
    UNROLL for (int k = 0; k < 8; k++) {
        ints w[PANELS];
        UNROLL for (int i = 0; i < P; i++) {
            w[i] = weights_at(kind, weights.first + i * weights.stride, k);
            if (kind == BYTES || k < 4) fetch(next.first + i * next.stride + 64 * k);
        }
        UNROLL for (int r = 0; r < R; r++) {
            ints x = all_four(p->whole + (at + r * p->groups) * GROUP + 4 * k);
            UNROLL for (int i = 0; i < P; i++)
                sum[r][i] = kind == BYTES ? dot4(sum[r][i], w[i], x) : dot4_small(sum[r][i], w[i], x);
        }
    }
}

#endif

// R rows from `row` times P panels, of the groups `first` to `end`. The sums so far are in `sums`. Meanwhile the
// weights `next`, which lie as they came, are fetched.
INLINE void tile(const int R, const int P, const Kind kind, const Product *p, Weights weights, Weights next,
                 long row, long first, long end, float *sums) {
    floats y[INT_ROWS][PANELS];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < P; i++)
        y[r][i] = first ? load(sums + r * WIDTH + i * PANEL) : zeros();
    for (long g = first; g < end; g++) {
        const long at = row * p->groups + g;
        ints sum[INT_ROWS][PANELS];
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < P; i++)
            sum[r][i] = all_int(p->start[at + r * p->groups]);
        add_products(R, P, kind, p, weights, next, at, sum);
        UNROLL for (int i = 0; i < P; i++) {
            floats scale = load_half(weights.scales + i * p->groups * PANEL);
            fetch(next.scales + i * p->groups * PANEL);
            UNROLL for (int r = 0; r < R; r++) {
                floats both = mul(scale, all(p->row_scale[at + r * p->groups]));
                y[r][i] = add(y[r][i], mul(float_of(sum[r][i]), both));
            }
        }
        weights.first += kind == NIBBLES ? WIDE / 2 : WIDE;
        next.first += kind == BYTES ? WIDE : WIDE / 2;
        weights.scales += PANEL, next.scales += PANEL;
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < P; i++)
        store(sums + r * WIDTH + i * PANEL, y[r][i]);
}

// `count` rows times P panels, in tiles of nearly the same size. Few rows wait for the memory, so each tile fetches
// what the next block needs; of many only the last does.
INLINE void tiles(const int P, const Kind kind, const Product *p, Weights weights, Weights next, long row,
                  long count, long first, long end, float *sums) {
    const int few = count <= 4 * INT_ROWS;
    for (long left = (count + INT_ROWS - 1) / INT_ROWS; left > 0; left--) {
        const long rows = count / left;
        const Weights ahead = few || left == 1 ? next : weights;
        SWITCH_ROWS(rows, INT_ROWS, tile(R, P, kind, p, weights, ahead, row, first, end, sums))
        count -= rows, row += rows, sums += rows * WIDTH;
    }
}

// The nibbles of some groups of a panel as bytes.
INLINE void take_apart(const uint8_t *nibbles, long groups, uint8_t *bytes) {
    for (long g = 0; g < groups; g++) UNROLL for (int k = 0; k < 8; k++)
        store_ints(bytes + g * WIDE + 64 * k, weights_at(NIBBLES, nibbles + g * WIDE / 2, k));
}

// Where a group of a panel lies.
INLINE Weights weights_from(const Kind kind, const Product *p, long panel, long group) {
    const long size = kind == NIBBLES ? WIDE / 2 : WIDE;
    const uint16_t *scales = p->scales + (panel * p->groups + group) * PANEL;
    return (Weights){p->weight + (panel * p->groups + group) * size, p->groups * size, scales};
}

// A tile of rows times P panels, which waits for the memory: groups ahead are fetched, at the end the next panels'.
INLINE void straight(const int P, const Kind kind, const Product *p, Place at, long panel, float *sums) {
    const long groups = AHEAD / (kind == NIBBLES ? WIDE / 2 : WIDE), ahead = p->groups > groups ? groups : p->groups;
    const long turn = p->groups - ahead;
    SWITCH_ROWS(at.rows, INT_ROWS, {
        if (turn) tile(R, P, kind, p, weights_from(kind, p, panel, 0), weights_from(kind, p, panel, ahead),
                       at.row, 0, turn, sums);
        tile(R, P, kind, p, weights_from(kind, p, panel, turn), weights_from(kind, p, panel + P, 0),
             at.row, turn, p->groups, sums);
    })
}

// A piece of few rows: nibbles are taken apart in registers.
INLINE void multiply_few(const Kind kind, const Product *p, Place at, float *sums) {
    for (long i = 0; i < at.panels; i += PANELS, sums += PANELS * PANEL)
        if (PANELS == 2 && at.panels - i >= 2) straight(PANELS, kind, p, at, at.panel + i, sums);
        else straight(1, kind, p, at, at.panel + i, sums);
}

// A piece of many rows, block by block of weights; nibbles are taken apart once, into the first cache.
INLINE void multiply_many(const Kind kind, const Product *p, Place at, float *sums) {
    const int apart = kind == NIBBLES && at.rows > 2 * INT_ROWS;
    uint8_t bytes[PANELS * BLOCK * WIDE];
    for (long first = 0; first < p->groups; first += BLOCK) {
        const long end = first + BLOCK < p->groups ? first + BLOCK : p->groups;
        for (long i = 0; i < at.panels; i += PANELS) {
            const Weights here = weights_from(kind, p, at.panel + i, first);
            const Weights next = weights_from(kind, p, at.panel + i, first + BLOCK);
            const int pair = PANELS == 2 && at.panels - i >= 2;
            float *to = sums + i * PANEL;
            if (apart) {
                const Weights there = {bytes, BLOCK * WIDE, here.scales};
                take_apart(here.first, end - first, bytes);
                if (pair) take_apart(here.first + here.stride, end - first, bytes + BLOCK * WIDE);
                if (pair) tiles(PANELS, SMALL_BYTES, p, there, next, at.row, at.rows, first, end, to);
                else tiles(1, SMALL_BYTES, p, there, next, at.row, at.rows, first, end, to);
            } else if (pair) tiles(PANELS, kind, p, here, next, at.row, at.rows, first, end, to);
            else tiles(1, kind, p, here, next, at.row, at.rows, first, end, to);
        }
    }
}

INLINE void multiply(const Kind kind, const Product *p, long piece) {
    const Place at = place(&p->rows, piece);
    float sums[CHUNK * WIDTH];
    if (at.rows <= INT_ROWS) multiply_few(kind, p, at, sums);
    else multiply_many(kind, p, at, sums);
    finish(&p->rows, at, sums);
}

// Quantize the rows, then multiply; `scratch` holds rows * groups * 40 bytes.
INLINE void compute(piece_fn *piece, Rows rows, const uint8_t *weight, const uint16_t *scales, void *scratch,
                    int offset, int threads) {
    const long groups = (rows.inputs + GROUP - 1) / GROUP, all = rows.rows * groups, pieces = pieces_of(&rows, threads);
    float *row_scale = scratch;
    int32_t *start = (int32_t *)(row_scale + all);
    const Product p = {rows, weight, scales, (int8_t *)(start + all), row_scale, start, groups, offset};
    run_pieces(quantize_row, &p, rows.rows, rows.rows < 8 ? 1 : threads);
    run_pieces(piece, &p, pieces, threads);
}
