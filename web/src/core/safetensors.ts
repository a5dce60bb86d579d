// The one container of every answer with numbers: 8 bytes length, a JSON header, raw little-endian bytes.

export interface Tensor {
  dtype: string;
  shape: number[];
  data: Float32Array | Uint8Array | Int32Array;
}

export interface Container {
  metadata: Record<string, string>;
  tensors: Record<string, Tensor>;
}

/** Reads a container; f16 and bf16 are widened, f64 and i64 narrowed, the rest is a view of the same bytes. Throws on a file that is none. */
export function read(buffer: ArrayBuffer): Container {
  if (buffer.byteLength < 8) throw new Error("The answer is cut off.");
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  if (length > buffer.byteLength - 8) throw new Error("The answer is cut off.");
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const tensors: Record<string, Tensor> = {};
  for (const [name, one] of Object.entries<any>(header)) {
    if (name === "__metadata__") continue;
    const [begin, end] = one.data_offsets as [number, number];
    tensors[name] = { dtype: one.dtype, shape: one.shape, data: decode(one.dtype, buffer, 8 + length + begin, end - begin) };
  }
  return { metadata: header.__metadata__ ?? {}, tensors };
}

function decode(dtype: string, buffer: ArrayBuffer, at: number, bytes: number): Tensor["data"] {
  const own = (size: number) => (at % size ? buffer.slice(at, at + bytes) : buffer);
  const place = (size: number) => (at % size ? 0 : at);
  switch (dtype) {
    case "F32":
      return new Float32Array(own(4), place(4), bytes / 4);
    case "U8":
    case "BOOL":
      return new Uint8Array(buffer, at, bytes);
    case "I32":
      return new Int32Array(own(4), place(4), bytes / 4);
    case "I64":
      return Int32Array.from(new BigInt64Array(own(8), place(8), bytes / 8), Number);
    case "F64":
      return Float32Array.from(new Float64Array(own(8), place(8), bytes / 8));
    case "F16":
      return Float32Array.from(new Uint16Array(own(2), place(2), bytes / 2), half);
    case "BF16": {
      const wide = new Uint32Array(bytes / 2);
      new Uint16Array(own(2), place(2), bytes / 2).forEach((bits, i) => (wide[i] = bits << 16));
      return new Float32Array(wide.buffer);
    }
    default:
      throw new Error(`The answer has numbers of a format that this page does not know, ${dtype}.`);
  }
}

/** A half-precision number's bits as a number. */
export function half(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 0) return sign * 2 ** -14 * (fraction / 1024);
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * 2 ** (exponent - 15) * (1 + fraction / 1024);
}

/** Bytes of base64. */
export function bytes(base64: string): Uint8Array {
  return Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));
}
