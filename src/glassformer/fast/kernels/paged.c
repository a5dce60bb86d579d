// Attention over keys and values that lie in pages of 32: softmax(q k^T) v for each token and head.
//
//     for each chunk of 512 keys, for each of its pages:
//         scores = scale * q k^T, capped, plus bias; of keys that are not seen: -inf
//         most, was = max(most, scores), most
//         p = exp(scores - most);   total = total * exp(was - most) + sum(p);   o = o * exp(was - most) + p v
//     y = the chunks' o, put together in the same way, over their total
//
// Keys lie as (page, head, dim / step, 32, step): a register holds one number (bf16: two) of sixteen keys, so that no
// sum across it is needed. Values lie as (page, head, 32, dim). Queries that share keys, those of a group of heads and
// neighbouring tokens of a sequence, are computed together, each as if it were alone. Chunks begin at multiples of 512
// whoever else is there, and are what threads share when there is one long sequence.

#include "piece.h"
#include "rows.h"

#include <math.h>

enum { PAGE = 32, CHUNK_KEYS = 512, VECTORS = 2 * PANELS };

// Tokens of one text from `token` to the next run's; `first` is that text's first run, of `count`.
typedef struct Run { int32_t token, first, count; } Run;

typedef struct {
    const void *q, *keys, *values;                // (tokens, heads, dim) and pages
    const int32_t *tables, *sequence, *lengths;  // (sequences, width), (tokens), (tokens)
    const float *bias;                           // (heads, biases) or null
    void *y;                                     // (tokens, heads, dim)
    float *parts;                                // (tokens, heads, chunks, 2 + wide): most, total, o
    Run *runs;                                   // of tokens that are computed together
    long tokens, heads, kv_heads, dim, wide, width, window, biases, chunks, count;
    float scale, softcap;
    int bf16;
} Attention;

INLINE float exponential_of(float x) { return first(exponential(all(x))); }

// cap * tanh(x / cap)
INLINE floats capped(floats x, float cap) {
    floats ratio = quotient(x, all(cap)), sign = of_bits(and_int(bits_of(ratio), all_int((int32_t)0x80000000)));
    floats size = of_bits(and_int(bits_of(ratio), all_int(0x7fffffff)));
    floats e = exponential(mul(all(-2), size));
    floats y = mul(quotient(sub(all(1), e), add(all(1), e)), all(cap));
    return of_bits(add_int(bits_of(y), bits_of(sign)));  // y has no sign of its own
}

typedef struct { int first, end; } Seen;  // of a page's keys

// V vectors of o (R, wide) += p (R, 32) times those of the values of the keys `seen`.
INLINE void weigh_some(const int R, const int V, const int bf16, long wide, const char *values, Seen seen,
                       const float *p, float *o) {
    floats sum[QUERY_ROWS][VECTORS];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < V; i++) sum[r][i] = load(o + r * wide + i * 16);
    for (int j = seen.first; j < seen.end; j++) {
        floats v[VECTORS];
        UNROLL for (int i = 0; i < V; i++) {
            const long from = j * wide + i * 16;
            v[i] = bf16 ? load_bf16((const uint16_t *)values + from) : load((const float *)values + from);
        }
        UNROLL for (int r = 0; r < R; r++) {
            floats one = all(p[r * PAGE + j]);
            UNROLL for (int i = 0; i < V; i++) sum[r][i] = mul_add(one, v[i], sum[r][i]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < V; i++) store(o + r * wide + i * 16, sum[r][i]);
}

// o (R, wide) += p (R, 32) times the values of the keys `seen`.
INLINE void weigh(const int R, const int bf16, long wide, const char *values, Seen seen, const float *p, float *o) {
    const long size = bf16 ? 2 : 4;
    long at = 0;
    for (; wide - at >= VECTORS * 16; at += VECTORS * 16)
        weigh_some(R, VECTORS, bf16, wide, values + at * size, seen, p, o + at);
    if (VECTORS > 2 && wide - at >= 32) weigh_some(R, 2, bf16, wide, values + at * size, seen, p, o + at), at += 32;
    if (wide > at) weigh_some(R, 1, bf16, wide, values + at * size, seen, p, o + at);
}

// The same of keys that one of several queries sees: few, so that it need not stand inside its caller.
__attribute__((noinline)) static void weigh_one(int bf16, long wide, const char *values, Seen seen, const float *p,
                                                float *o) {
    if (seen.first >= seen.end) return;
    if (bf16) weigh(1, 1, wide, values, seen, p, o);
    else weigh(1, 0, wide, values, seen, p, o);
}

typedef struct { long token, head, first, end; float most, total; } Query;  // keys first .. end - 1 of the chunk

// One query's weights p (32) of a page's keys from their products; o and total are scaled to the new greatest score.
INLINE void soften(const Attention *a, Query *q, long key, Seen seen, floats low, floats high, float *p, float *o) {
    low = mul(low, all(a->scale)), high = mul(high, all(a->scale));
    if (a->softcap > 0) low = capped(low, a->softcap), high = capped(high, a->softcap);
    if (a->bias) {
        float bias[PAGE] = {0};
        for (int j = seen.first; j < seen.end; j++) {
            long back = a->lengths[q->token] - 1 - key - j;
            bias[j] = a->bias[q->head * a->biases + (back < a->biases ? back : a->biases - 1)];
        }
        low = add(low, load(bias)), high = add(high, load(bias + 16));
    }
    low = between(seen.first, seen.end, low, all(-INFINITY));
    high = between(seen.first - 16, seen.end - 16, high, all(-INFINITY));
    const float most = greatest(greater(all(q->most), greater(low, high)));
    low = exponential(sub(low, all(most))), high = exponential(sub(high, all(most)));
    store(p, low), store(p + 16, high);
    if (most != q->most && q->total > 0) {  // before that o is zeros
        const floats shrink = exponential(all(q->most - most));
        q->total *= first(shrink);
        for (long i = 0; i < a->wide; i += 16) store(o + i, mul(load(o + i), shrink));
    }
    q->most = most;
    q->total += total(add(low, high));
}

// y = o / total
static void divide(const Attention *a, const Query *q, const float *o, float total) {
    const long to = (q->token * a->heads + q->head) * a->dim;
    for (long i = 0; i < a->dim; i += 16) put(a->y, to + i, to + a->dim, a->bf16, quotient(load(o + i), all(total)));
}

static long first_seen(const Attention *a, long token) {
    return a->window && a->lengths[token] > a->window ? a->lengths[token] - a->window : 0;
}

// R queries that share the keys of a head, over a chunk.
INLINE void attend(const int R, const int bf16, const Attention *a, Query *q, long kv_head) {
    const long size = bf16 ? 2 : 4, steps = a->dim * size / 4, wide = a->wide;
    long page = q->first / PAGE, end = 0;
    float o[QUERY_ROWS * wide], p[QUERY_ROWS * PAGE];
    memset(o, 0, sizeof o);
    UNROLL for (int r = 0; r < R; r++) {
        if (q[r].end > q[r].first && (end == 0 || q[r].first / PAGE < page)) page = q[r].first / PAGE;
        if (q[r].end > q[r].first && q[r].end > end) end = q[r].end;
    }
    for (; page * PAGE < end; page++) {
        const long id = a->tables[a->sequence[q->token] * a->width + page] * a->kv_heads + kv_head;
        const char *keys = (const char *)a->keys + id * steps * PAGE * 4;
        const char *values = (const char *)a->values + id * PAGE * wide * size;
        floats low[QUERY_ROWS], high[QUERY_ROWS];
        UNROLL for (int r = 0; r < R; r++) low[r] = high[r] = zeros();
        for (long d = 0; d < steps; d++) {
            ints first = load_ints(keys + d * PAGE * 4), second = load_ints(keys + d * PAGE * 4 + 64);
            UNROLL for (int r = 0; r < R; r++) {
                ints x = all_four((const char *)a->q + ((q[r].token * a->heads + q[r].head) * steps + d) * 4);
                low[r] = bf16 ? dot2(low[r], first, x) : mul_add(of_bits(x), of_bits(first), low[r]);
                high[r] = bf16 ? dot2(high[r], second, x) : mul_add(of_bits(x), of_bits(second), high[r]);
            }
        }
        Seen seen[QUERY_ROWS], common = {0, PAGE};  // to all queries
        UNROLL for (int r = 0; r < R; r++) {
            const long first = q[r].first - page * PAGE, last = q[r].end - page * PAGE;
            seen[r] = (Seen){first < 0 ? 0 : (int)first, last > PAGE ? PAGE : (int)last};
            if (seen[r].first < seen[r].end)
                soften(a, q + r, page * PAGE, seen[r], low[r], high[r], p + r * PAGE, o + r * a->wide);
            if (seen[r].first > common.first) common.first = seen[r].first;
            if (seen[r].end < common.end) common.end = seen[r].end;
        }
        if (common.first >= common.end) common = (Seen){PAGE, PAGE};
        for (int r = 0; r < R; r++) {
            const Seen before = {seen[r].first, seen[r].end < common.first ? seen[r].end : common.first};
            weigh_one(bf16, wide, values, before, p + r * PAGE, o + r * wide);
        }
        if (common.first < common.end) weigh(R, bf16, wide, values, common, p, o);
        for (int r = 0; r < R; r++) {
            const Seen after = {seen[r].first > common.end ? seen[r].first : common.end, seen[r].end};
            weigh_one(bf16, wide, values, after, p + r * PAGE, o + r * wide);
        }
    }
    for (int r = 0; r < R; r++) {
        if (q[r].first >= q[r].end) continue;
        const long chunk = q[r].first / CHUNK_KEYS, last = (a->lengths[q[r].token] - 1) / CHUNK_KEYS;
        float *part = a->parts + ((q[r].token * a->heads + q[r].head) * a->chunks + chunk) * (2 + a->wide);
        if (first_seen(a, q[r].token) / CHUNK_KEYS == last) divide(a, q + r, o + r * a->wide, q[r].total);
        else part[0] = q[r].most, part[1] = q[r].total, memcpy(part + 2, o + r * a->wide, a->wide * 4);
    }
}

// A run of tokens, a head of keys, a chunk; in the order of texts, their heads and their runs, so that queries of a short
// text are still in the second cache for the next head, and a head's keys of a long one for the next run.
static void piece(const void *task, long number) {
    const Attention *a = task;
    const long chunk = number / (a->count * a->kv_heads), place = number % (a->count * a->kv_heads);
    const Run text = a->runs[place / a->kv_heads];  // any run of the text
    const long within = place - text.first * a->kv_heads, kv_head = within / text.count;
    const Run *run = a->runs + text.first + within % text.count;
    const long group = a->heads / a->kv_heads, from = run->token, queries = (run[1].token - from) * group;
    long done = 0;
    for (long left = (queries + QUERY_ROWS - 1) / QUERY_ROWS; left > 0; left--) {
        const long rows = (queries - done) / left;
        Query q[QUERY_ROWS];
        for (long r = 0; r < rows; r++) {
            const long token = from + (done + r) / group, start = chunk * CHUNK_KEYS, first = first_seen(a, token);
            const long length = a->lengths[token], end = length < start + CHUNK_KEYS ? length : start + CHUNK_KEYS;
            const long head = kv_head * group + (done + r) % group;
            q[r] = (Query){token, head, first > start ? first : start, end, -INFINITY, 0};
        }
        if (a->bf16) SWITCH_ROWS(rows, QUERY_ROWS, attend(R, 1, a, q, kv_head))
        else SWITCH_ROWS(rows, QUERY_ROWS, attend(R, 0, a, q, kv_head))
        done += rows;
    }
}

// The chunks of a token put together.
static void join(const void *task, long token) {
    const Attention *a = task;
    const long first = first_seen(a, token) / CHUNK_KEYS, last = (a->lengths[token] - 1) / CHUNK_KEYS;
    for (long head = 0; head < a->heads && first < last; head++) {
        const float *parts = a->parts + (token * a->heads + head) * a->chunks * (2 + a->wide);
        float most = -INFINITY, all_total = 0, o[a->wide];
        for (long c = first; c <= last; c++) most = parts[c * (2 + a->wide)] > most ? parts[c * (2 + a->wide)] : most;
        memset(o, 0, sizeof o);
        for (long c = first; c <= last; c++) {
            const float *part = parts + c * (2 + a->wide), weight = exponential_of(part[0] - most);
            all_total += part[1] * weight;
            for (long i = 0; i < a->wide; i += 16) store(o + i, mul_add(load(part + 2 + i), all(weight), load(o + i)));
        }
        const Query q = {token, head, 0, 0, 0, 0};
        divide(a, &q, o, all_total);
    }
}

EXPORT(paged_attention)(const void *q, const void *keys, const void *values, const int32_t *tables,
                        const int32_t *sequence, const int32_t *lengths, const float *bias, void *y, float *parts,
                        Run *runs, long tokens, long heads, long kv_heads, long dim, long wide, long width,
                        long window, long biases, long chunks, float scale, float softcap, int bf16, int threads) {
    long together = 1, count = 0;  // tokens of a run: with all their heads they fill tiles of QUERY_ROWS
    while (together * (heads / kv_heads) % QUERY_ROWS) together++;
    for (long begin = 0, end; begin < tokens; begin = end) {
        for (end = begin + 1; end < tokens && sequence[end] == sequence[begin];) end++;
        const long own = (end - begin + together - 1) / together, first = count;
        for (long i = 0; i < own; i++)
            runs[count++] = (Run){(int32_t)(begin + (end - begin) * i / own), (int32_t)first, (int32_t)own};
    }
    runs[count].token = (int32_t)tokens;
    const Attention a = {q, keys, values, tables, sequence, lengths, bias, y, parts, runs, tokens, heads, kv_heads,
                         dim, wide, width, window, biases, chunks, count, scale, softcap, bf16};
    run_pieces(piece, &a, count * kv_heads * chunks, threads);
    if (chunks > 1) run_pieces(join, &a, tokens, threads);
}

// Pages of `size` bytes, from where they are to where they are to be as well.
EXPORT(copy_pages)(char *pages, const int64_t *source, const int64_t *target, long count, long size) {
    for (long i = 0; i < count; i++) memcpy(pages + target[i] * size, pages + source[i] * size, size);
}

// Keys and values (tokens, heads, dim) of `size` bytes a number into their slots; a page's values are `wide` apart.
EXPORT(write_pages)(const char *k, const char *v, char *keys, char *values, const int64_t *slots, long tokens,
                    long heads, long dim, long wide, long size) {
    const long words = dim * size / 4;
    for (long i = 0; i < tokens * heads; i++, k += dim * size, v += dim * size) {
        const long slot = slots[i / heads], head = slot / PAGE * heads + i % heads, place = slot % PAGE;
        char *to = keys + (head * words * PAGE + place) * 4;
        for (long j = 0; j < words; j++) memcpy(to + j * PAGE * 4, k + j * 4, 4);
        memcpy(values + (head * PAGE + place) * wide * size, v, dim * size);
    }
}
