// The sandbox's arithmetic, pure: tests hold each to the library's own.

export function softmax(row: ArrayLike<number>): Float64Array {
  let most = -Infinity;
  for (let i = 0; i < row.length; i++) if (row[i] > most) most = row[i];
  const out = new Float64Array(row.length);
  let total = 0;
  for (let i = 0; i < row.length; i++) total += out[i] = Math.exp(row[i] - most);
  for (let i = 0; i < row.length; i++) out[i] /= total;
  return out;
}

/** softmax(X Xᵀ / √d) X of vectors X (T, d): each is its own query, key and value; `sees(query, key)` is the mask. */
export function attention(X: number[][], sees: (t: number, s: number) => boolean = () => true) {
  const d = X[0]?.length ?? 0;
  const scores = X.map((q, t) => X.map((k, s) => (sees(t, s) ? q.reduce((sum, v, i) => sum + v * k[i], 0) / Math.sqrt(d) : -Infinity)));
  const pattern = scores.map((row) => Array.from(softmax(row)));
  return { scores, pattern, out: pattern.map((row) => X[0].map((_, i) => row.reduce((sum, a, s) => sum + a * X[s][i], 0))) };
}

/** Sine and cosine in turn (N, d). */
export function sines(N: number, d: number): Float32Array {
  const data = new Float32Array(N * d);
  for (let p = 0; p < N; p++) for (let i = 0; i < d; i += 2) {
    const angle = p / 10000 ** (i / d);
    data[p * d + i] = Math.sin(angle);
    data[p * d + i + 1] = Math.cos(angle);
  }
  return data;
}

/** By how much rotary positions turn pair `pair` of `d` dimensions at `place`. */
export const angle = (place: number, pair: number, d: number, base = 10000) => place * base ** ((-2 * pair) / d);

export const turned = (a: number, b: number, by: number): [number, number] => [a * Math.cos(by) - b * Math.sin(by), a * Math.sin(by) + b * Math.cos(by)];

/** Which keys a decoder's query sees under a rule with one number, as config/mask.py says it. */
export const RULES: Record<string, (q: number, k: number, n: number) => boolean> = {
  full: () => true,
  causal: (q, k) => k <= q,
  window: (q, k, n) => k <= q && q - k < n,
  every: (q, k, n) => k <= q && (q - k) % n === 0,
  chunk: (q, k, n) => k <= q && Math.floor(q / n) === Math.floor(k / n),
  strided: (q, k, n) => k <= q && (q - k < n || (q - k) % n === 0),
  fixed: (q, k, n) => k <= q && (Math.floor(q / n) === Math.floor(k / n) || k % n === n - 1),
};
