// Blocks of a decoder, one after another, for tokens of many texts whose keys and values lie in pages: what the modules
// of nn/ compute by single kernels, bit for bit, without going back to Python between two of them.
//
//     x += attention(norm(x));   x += attention to the encoder's output(norm(x));   x += feed-forward(norm(x))
//
// as block.py says it, with norms elsewhere too.
//
// One thread leads and the others wait for pieces (pool.h). What is little it does alone.

#include "piece.h"
#include "rows.h"

typedef struct {
    const void *weight;
    const uint16_t *scales;  // of INT8 and INT4
    const float *bias;       // or null
    long outputs, kind;
} Matrix;
enum { INT8, INT4, BF16, FP32 };

typedef struct {
    Norm q_norm, k_norm;
    Matrix qkv[3], out;  // all may be in the first; of what looks at the encoder's output it is q alone
    long heads, kv_heads, dim, window;
    float scale, softcap;
} Heads;

typedef struct {
    Norm attn_norm, attn_post_norm, cross_norm, cross_post_norm, ffn_norm, ffn_post_norm;
    Heads self, cross;  // cross.heads is 0 in a decoder without an encoder
    Matrix up[2], down;  // both on one input may be in the first; gated: up[0] is the gate
    long hidden, gated, activation, place;
} Block;
enum { PRE, POST, SANDWICH, PARALLEL };

typedef struct { void *keys, *values, *cross_keys, *cross_values; } KeysValues;

// Where the tokens' keys lie, as paged_attention takes it.
typedef struct {
    const int32_t *tables, *sequence, *lengths;
    long width, chunks;
} Where;

typedef struct {
    const Block *blocks;
    const KeysValues *pages;  // of each block
    long count;
    void *x;  // (rows, width): embeddings in, hidden states out
    long rows, width;
    const void *cos, *sin;  // (rows, turned), or turned is 0
    long turned, neighbours;
    Where own, source;           // a token's own text, and what its encoder read
    const int64_t *slots;        // (rows): where each token's keys go
    const float *distance_bias;  // (heads, biases) or null
    long biases;
    void *room;  // as much as stack_room says
    long bf16, threads;
    Where windows;  // of layers with windows, which may have other pages
    const int64_t *window_slots;
} Pass;

typedef struct {
    void *normed, *wide, *q, *z, *write, *second, *scratch;
    float *parts;
    void *runs;  // three int32 a token, as paged_attention takes them
    long size;
} Room;

typedef struct {
    const Pass *pass;
    const Block *block;
    const KeysValues *pages;
    const Room *room;
    const Norm *norm;
    const void *from;
    void *to;
} Task;

typedef void integers_fn(const void *x, const uint8_t *weight, const uint16_t *scales, const float *bias, void *y,
                         void *scratch, long rows, long inputs, long outputs, long stride, int bf16, int threads);
typedef void floats_fn(const void *x, const void *weight, const float *bias, void *y, void *scratch, long rows,
                       long inputs, long outputs, long stride, int threads);
typedef void attention_fn(const void *q, const void *keys, const void *values, const int32_t *tables,
                          const int32_t *sequence, const int32_t *lengths, const float *bias, void *y, float *parts,
                          void *runs, long tokens, long heads, long kv_heads, long dim, long wide, long width,
                          long window, long biases, long chunks, float scale, float softcap, int bf16, int threads);
integers_fn JOIN(strided_int8, BUILD), JOIN(strided_int4, BUILD);
floats_fn JOIN(strided_bf16, BUILD), JOIN(strided_fp32, BUILD);
attention_fn JOIN(paged_attention, BUILD);

static void *at(const void *x, long number, long bf16) { return (char *)x + number * (bf16 ? 2 : 4); }

static long most(long a, long b) { return a > b ? a : b; }

// Bytes of a token's unfinished results, where there are more chunks of keys than one.
static long parts_of(const Heads *h, long chunks) {
    return chunks > 1 ? h->heads * chunks * (2 + (h->dim + 15) / 16 * 16) * 4 : 0;
}

// Where everything lies in p->room.
static Room room_of(const Pass *p) {
    long wide = 0, attended = 0, inputs = p->width, parts = 0;
    for (long i = 0; i < p->count; i++) {
        const Block *b = p->blocks + i;
        wide = most(wide, most((b->self.heads + 2 * b->self.kv_heads) * b->self.dim, (2 + b->gated) * b->hidden));
        attended = most(attended, most(b->self.heads * b->self.dim, b->cross.heads * b->cross.dim));
        inputs = most(inputs, b->hidden);
        parts = most(parts, most(parts_of(&b->self, p->own.chunks), parts_of(&b->cross, p->source.chunks)));
    }
    inputs = most(inputs, attended);
    const long size = p->bf16 ? 2 : 4, groups = (inputs + GROUP - 1) / GROUP;
    const long row = p->width * size, head = attended * size, scratch = most(inputs * 4, groups * (GROUP + 8));
    const long sizes[] = {row, wide * size, head, head, row, row, scratch, parts, 3 * sizeof(int32_t)};
    char *begin[9], *next = p->room;
    for (int i = 0; i < 9; i++) begin[i] = next, next += ((p->rows + 1) * sizes[i] + 127) / 64 * 64;
    return (Room){begin[0], begin[1], begin[2], begin[3], begin[4], begin[5], begin[6], (float *)begin[7],
                  begin[8], next - (char *)p->room};
}

static void product(const Task *t, const Matrix *m, const void *x, long inputs, void *y, long stride) {
    const Pass *p = t->pass;
    void *scratch = t->room->scratch;
    const long rows = p->rows, outputs = m->outputs;
    const int threads = (int)p->threads;
    if (m->kind == INT8 || m->kind == INT4) {
        integers_fn *multiply = m->kind == INT8 ? JOIN(strided_int8, BUILD) : JOIN(strided_int4, BUILD);
        multiply(x, m->weight, m->scales, m->bias, y, scratch, rows, inputs, outputs, stride, (int)p->bf16, threads);
    } else {
        floats_fn *multiply = m->kind == BF16 ? JOIN(strided_bf16, BUILD) : JOIN(strided_fp32, BUILD);
        multiply(x, m->weight, m->bias, y, scratch, rows, inputs, outputs, stride, threads);
    }
}

// Several matrices on one input, their outputs side by side.
static void products(const Task *t, const Matrix *m, int count, const void *x, long inputs, void *y, long stride) {
    for (long first = 0; count-- > 0; first += m++->outputs)
        if (m->outputs) product(t, m, x, inputs, at(y, first, t->pass->bf16), stride);
}

static void norm_one(const void *task, long row) {
    const Task *t = task;
    const long width = t->pass->width, bf16 = t->pass->bf16;
    norm_row(t->norm, at(t->from, row * width, bf16), at(t->to, row * width, bf16), width, (int)bf16);
}

static const void *normed(Task *t, const Norm *norm, const void *from, void *to) {
    if (norm->kind == NO_NORM) return from;
    t->norm = norm, t->from = from, t->to = to;
    run_pieces(norm_one, t, t->pass->rows, (int)t->pass->threads);
    return to;
}

static void add_one(const void *task, long row) {
    const Task *t = task;
    const long first = row * t->pass->width, end = first + t->pass->width;
    const int bf16 = (int)t->pass->bf16;
    for (long i = first; i < end; i += 16)
        put(t->to, i, end, bf16, add(take(t->to, i, end, bf16), take(t->from, i, end, bf16)));
}

static void add_to_stream(Task *t, const void *write) {
    t->from = write, t->to = t->pass->x;
    run_pieces(add_one, t, t->pass->rows, t->pass->rows < 8 ? 1 : (int)t->pass->threads);
}

// A head's numbers, normed and turned, as they are kept.
INLINE void make_head(const Task *t, const Norm *norm, const void *from, const float *cos, const float *sin, void *to) {
    const Pass *p = t->pass;
    const long dim = t->block->self.dim;
    const int bf16 = (int)p->bf16;
    float head[dim + 16];
    if (norm->kind != NO_NORM) norm_row(norm, from, to, dim, bf16), from = to;
    if (p->turned) {
        for (long i = 0; i < dim; i += 16) put(head, i, dim, 0, take(from, i, dim, bf16));
        turn(head, cos, sin, p->turned, (int)p->neighbours, bf16);
        for (long i = 0; i < dim; i += 16) put(to, i, dim, bf16, take(head, i, dim, 0));
    } else if (from != to) memcpy(to, from, dim * (bf16 ? 2 : 4));
}

// A token's queries, and its keys and values into their pages.
static void make_heads(const void *task, long row) {
    const Task *t = task;
    const Pass *p = t->pass;
    const Heads *b = &t->block->self;
    const long dim = b->dim, heads = b->heads, kv_heads = b->kv_heads, size = p->bf16 ? 2 : 4, words = dim * size / 4;
    const long padded = (dim + 15) / 16 * 16, slot = (b->window ? p->window_slots : p->slots)[row];
    const long page = slot / 32, place = slot % 32;
    const char *from = at(t->room->wide, row * (heads + 2 * kv_heads) * dim, p->bf16);
    float cos[p->turned + 16], sin[p->turned + 16];
    int32_t key[dim];
    for (long i = 0; i < p->turned; i += 16) {
        put(cos, i, p->turned, 0, take(at(p->cos, row * p->turned, p->bf16), i, p->turned, (int)p->bf16));
        put(sin, i, p->turned, 0, take(at(p->sin, row * p->turned, p->bf16), i, p->turned, (int)p->bf16));
    }
    for (long h = 0; h < heads; h++, from += dim * size)
        make_head(t, &b->q_norm, from, cos, sin, at(t->room->q, (row * heads + h) * dim, p->bf16));
    for (long h = 0; h < kv_heads; h++, from += dim * size) {
        int32_t *to = (int32_t *)t->pages->keys + (page * kv_heads + h) * words * 32 + place;
        make_head(t, &b->k_norm, from, cos, sin, key);
        for (long i = 0; i < words; i++) to[i * 32] = key[i];
    }
    for (long h = 0; h < kv_heads; h++, from += dim * size)
        memcpy(at(t->pages->values, ((page * kv_heads + h) * 32 + place) * padded, p->bf16), from, dim * size);
}

// softmax(q k^T) v of r->q, projected into y.
static void attend(Task *t, const Heads *h, const void *keys, const void *values, const Where *w, const float *bias,
                   void *y) {
    const Pass *p = t->pass;
    const Room *r = t->room;
    JOIN(paged_attention, BUILD)(r->q, keys, values, w->tables, w->sequence, w->lengths, bias, r->z, r->parts, r->runs,
        p->rows, h->heads, h->kv_heads, h->dim, (h->dim + 15) / 16 * 16, w->width, h->window, bias ? p->biases : 0,
        w->chunks, h->scale, h->softcap, (int)p->bf16, (int)p->threads);
    product(t, &h->out, r->z, h->heads * h->dim, y, p->width);
}

static void self_attention(Task *t, const void *x, void *y) {
    const Pass *p = t->pass;
    const Heads *h = &t->block->self;
    products(t, h->qkv, 3, x, p->width, t->room->wide, (h->heads + 2 * h->kv_heads) * h->dim);
    run_pieces(make_heads, t, p->rows, (int)p->threads);
    const Where *where = h->window ? &p->windows : &p->own;
    attend(t, h, t->pages->keys, t->pages->values, where, p->distance_bias, y);
}

static void norm_queries(const void *task, long row) {
    const Task *t = task;
    const Heads *h = &t->block->cross;
    for (long i = row * h->heads; i < (row + 1) * h->heads; i++) {
        void *head = at(t->room->q, i * h->dim, t->pass->bf16);
        norm_row(&h->q_norm, head, head, h->dim, (int)t->pass->bf16);
    }
}

static void cross_attention(Task *t, const void *x, void *y) {
    const Pass *p = t->pass;
    const Heads *h = &t->block->cross;
    product(t, h->qkv, x, p->width, t->room->q, h->heads * h->dim);
    if (h->q_norm.kind != NO_NORM) run_pieces(norm_queries, t, p->rows, (int)p->threads);
    attend(t, h, t->pages->cross_keys, t->pages->cross_values, &p->source, NULL, y);
}

enum { COLUMNS = 1024 };  // that are activated at a time

// (rows, hidden), or (rows, gate and up) -> (rows, hidden) after all of it
static void activate(const void *task, long piece) {
    const Task *t = task;
    const Block *b = t->block;
    const int bf16 = (int)t->pass->bf16;
    const long cuts = (b->hidden + COLUMNS - 1) / COLUMNS, row = piece / cuts, first = piece % cuts * COLUMNS;
    const long end = b->hidden - first < COLUMNS ? b->hidden : first + COLUMNS;
    const void *gate = at(t->room->wide, row * (1 + b->gated) * b->hidden, bf16), *up = at(gate, b->hidden, bf16);
    void *to = at(t->room->wide, (t->pass->rows * (1 + b->gated) + row) * b->hidden, bf16);
    if (!b->gated) to = (void *)gate;
    for (long i = first; i < end; i += 16) {
        floats y = activated((Activation)b->activation, take(gate, i, end, bf16));
        if (b->gated) y = mul(rounded(y, bf16), take(up, i, end, bf16));
        put(to, i, end, bf16, y);
    }
}

static void feed_forward(Task *t, const void *x, void *y) {
    const Pass *p = t->pass;
    const Block *b = t->block;
    products(t, b->up, 2, x, p->width, t->room->wide, (1 + b->gated) * b->hidden);
    run_pieces(activate, t, p->rows * ((b->hidden + COLUMNS - 1) / COLUMNS), (int)p->threads);
    product(t, &b->down, at(t->room->wide, b->gated ? 2 * p->rows * b->hidden : 0, p->bf16), b->hidden, y, p->width);
}

typedef void sublayer_fn(Task *t, const void *x, void *y);

static void residual(Task *t, sublayer_fn *sublayer, const Norm *norm, const Norm *post_norm) {
    const Pass *p = t->pass;
    void *write = t->room->write;
    if (t->block->place == POST) {
        sublayer(t, p->x, write);
        add_to_stream(t, write);
        normed(t, norm, p->x, p->x);
    } else {
        sublayer(t, normed(t, norm, p->x, t->room->normed), write);
        add_to_stream(t, normed(t, post_norm, write, write));
    }
}

static void run_blocks(void *data) {
    const Pass *p = data;
    const Room room = room_of(p);
    for (long i = 0; i < p->count; i++) {
        const Block *b = p->blocks + i;
        Task t = {.pass = p, .block = b, .pages = p->pages + i, .room = &room};
        if (b->place == PARALLEL) {
            const void *x = normed(&t, &b->attn_norm, p->x, room.normed);
            self_attention(&t, x, room.write);
            feed_forward(&t, x, room.second);
            add_to_stream(&t, room.write);
            add_to_stream(&t, room.second);
        } else {
            residual(&t, self_attention, &b->attn_norm, &b->attn_post_norm);
            if (b->cross.heads) residual(&t, cross_attention, &b->cross_norm, &b->cross_post_norm);
            if (b->hidden) residual(&t, feed_forward, &b->ffn_norm, &b->ffn_post_norm);
        }
    }
}

EXPORT(stack_room)(const Pass *pass, long *size) { *size = room_of(pass).size; }

EXPORT(stack)(const Pass *pass) { run_team(run_blocks, (void *)pass, (int)pass->threads); }

enum { SOME_ROWS = 64, SOME_NUMBERS = 1 << 14 };  // that one thread takes at a time

static void norm_some(const void *task, long number) {
    const long rows = ((const Task *)task)->pass->rows, left = rows - number * SOME_ROWS;
    for (long r = 0; r < SOME_ROWS && r < left; r++) norm_one(task, number * SOME_ROWS + r);
}

// (rows, width) -> (rows, width)
EXPORT(norm)(const void *x, void *y, const Norm *norm, long rows, long width, int bf16, int threads) {
    const Pass pass = {.rows = rows, .width = width, .bf16 = bf16};
    const Task task = {.pass = &pass, .norm = norm, .from = x, .to = y};
    run_pieces(norm_some, &task, (rows + SOME_ROWS - 1) / SOME_ROWS, threads);
}

typedef struct {
    const void *x;
    void *y;
    long kind, count;
    int bf16;
} Numbers;

static void activate_some(const void *task, long number) {
    const Numbers *n = task;
    const long first = number * SOME_NUMBERS, end = first + SOME_NUMBERS < n->count ? first + SOME_NUMBERS : n->count;
    for (long i = first; i < end; i += 16)
        put(n->y, i, end, n->bf16, activated((Activation)n->kind, take(n->x, i, end, n->bf16)));
}

EXPORT(activation)(const void *x, void *y, long kind, long count, int bf16, int threads) {
    const Numbers numbers = {x, y, kind, count, bf16};
    run_pieces(activate_some, &numbers, (count + SOME_NUMBERS - 1) / SOME_NUMBERS, threads);
}
