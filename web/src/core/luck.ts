// The luck of a seed, as Python makes it: SHA-256 of seed and prompt seeds a Mersenne Twister, whose numbers are torch.rand's.
// So the needle on the page is the one that chose, and the same seed gives the same text as the command line.

const K = new Uint32Array(64);
const START = new Uint32Array(8);
for (let n = 2, found = 0; found < 64; n++) {
  let prime = true;
  for (let d = 2; d * d <= n; d++) if (n % d === 0) prime = false;
  if (!prime) continue;
  const fraction = (x: number) => Math.floor((x - Math.floor(x)) * 2 ** 32);
  if (found < 8) START[found] = fraction(Math.sqrt(n));
  K[found++] = fraction(Math.cbrt(n));
}

/** SHA-256 (FIPS 180-4). */
export function sha256(data: Uint8Array): Uint8Array {
  const length = (((data.length + 8) >> 6) + 1) << 6, padded = new Uint8Array(length), view = new DataView(padded.buffer);
  padded.set(data);
  padded[data.length] = 0x80;
  view.setUint32(length - 8, Math.floor(data.length / 2 ** 29));
  view.setUint32(length - 4, data.length << 3);
  const hash = START.slice(), w = new Uint32Array(64), turn = (x: number, n: number) => (x >>> n) | (x << (32 - n));
  for (let at = 0; at < length; at += 64) {
    for (let i = 0; i < 64; i++) {
      if (i < 16) w[i] = view.getUint32(at + 4 * i);
      else w[i] = (turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ (w[i - 2] >>> 10)) + w[i - 7] + (turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ (w[i - 15] >>> 3)) + w[i - 16];
    }
    let [a, b, c, d, e, f, g, h] = hash;
    for (let i = 0; i < 64; i++) {
      const one = (h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + w[i]) | 0;
      const two = ((turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + one) | 0, c, b, a, (one + two) | 0];
    }
    [a, b, c, d, e, f, g, h].forEach((x, i) => (hash[i] += x));
  }
  const out = new Uint8Array(32);
  hash.forEach((x, i) => new DataView(out.buffer).setUint32(4 * i, x));
  return out;
}

/** MT19937 (Matsumoto & Nishimura 1998) from a 32-bit seed: its first `count` numbers of 24 bits, from 0 to 1, as torch.rand gives them. */
export function uniforms(seed: number, count: number): Float32Array {
  const n = 624, state = new Uint32Array(n), out = new Float32Array(count);
  state[0] = seed;
  for (let i = 1; i < n; i++) state[i] = Math.imul(1812433253, state[i - 1] ^ (state[i - 1] >>> 30)) + i;
  for (let made = 0, at = n; made < count; made++, at++) {
    if (at === n) {
      at = 0;
      for (let i = 0; i < n; i++) {
        const y = (state[i] & 0x80000000) | (state[(i + 1) % n] & 0x7fffffff);
        state[i] = state[(i + 397) % n] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
      }
    }
    let y = state[at];
    y ^= y >>> 11;
    y ^= (y << 7) & 0x9d2c5680;
    y ^= (y << 15) & 0xefc60000;
    y ^= y >>> 18;
    out[made] = (y & 0xffffff) / 2 ** 24;
  }
  return out;
}

/** The luck of every step that follows a prompt (generation/decode_loop.py). */
export function luck(seed: number, prompt: readonly number[], count: number, among = 0): Float32Array {
  const ids = prompt.length === 1 ? `(${prompt[0]},)` : `(${prompt.join(", ")})`;
  const hash = sha256(new TextEncoder().encode(`${seed} ${among} ${ids}`));
  const low = ((hash[4] << 24) | (hash[5] << 16) | (hash[6] << 8) | hash[7]) >>> 0;
  return uniforms(((low >>> 1) | ((hash[3] & 1) << 31)) >>> 0, count);
}
