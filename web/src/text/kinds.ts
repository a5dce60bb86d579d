/** What each kind of operation is, at three depths: plain words, the equation, the line of PyTorch that does the same.
 *
 *  The kinds are those of sight/recording/plan.py; a kind that is not here gets the text of `generic`.
 */
import { type Maths, cases, frac, math, n, o, paren, root, seq, sub, sum, sup, v, words } from "./mathml";

export type Depth = "plain" | "maths" | "code";
export type Params = Readonly<Record<string, number | string | boolean>>;
export interface KindText {
  /** What the card is called. */
  title: string;
  /** One or two sentences that need no mathematics. */
  plain: string;
  /** The equation; `Formula` draws it. */
  maths: Maths;
  /** The same in PyTorch. */
  code: string;
}
type Text = KindText | ((params: Params, address: string) => KindText);

const eq = o("=");
const x = v("x");
const xi = sub(v("x"), v("i"));
const e = (...power: Maths[]): Maths => sup(v("e"), ...power);
const number = (value: unknown): string => (typeof value === "number" ? String(Number(value.toPrecision(6))) : String(value));

const ACTIVATIONS: Record<string, { maths: Maths; code: string; plain: string }> = {
  relu: { maths: seq(v("max"), paren(n(0), o(","), x)), code: "F.relu(x)", plain: "Negative numbers become 0, positive ones pass unchanged." },
  relu2: { maths: seq(sup(v("max"), n(2)), paren(n(0), o(","), x)), code: "F.relu(x).square()", plain: "Negative numbers become 0, positive ones are squared." },
  gelu: { maths: seq(x, o("·"), v("Φ"), paren(x)), code: "F.gelu(x)", plain: "Large positive numbers pass, large negative ones become almost 0, with a smooth bend between (Φ is the normal distribution's cumulative function)." },
  gelu_tanh: { maths: seq(frac(x, n(2)), paren(n(1), o("+"), v("tanh"), paren(root(frac(n(2), v("π"))), paren(x, o("+"), n("0.044715"), sup(x, n(3)))))), code: 'F.gelu(x, approximate="tanh")', plain: "GELU in its tanh approximation: large positive numbers pass, large negative ones become almost 0." },
  silu: { maths: seq(frac(x, seq(n(1), o("+"), e(o("−"), x)))), code: "F.silu(x)", plain: "Each number times its own sigmoid: large positive numbers pass, large negative ones become almost 0." },
  tanh: { maths: seq(v("tanh"), paren(x)), code: "torch.tanh(x)", plain: "Every number is pressed smoothly between −1 and 1." },
};

/** Part of the sentence that says which of the many linear layers this one is, by the last word of its address. */
const LINEAR: Record<string, string> = {
  q_proj: "Makes the queries: what each token asks the others for.",
  k_proj: "Makes the keys: what each token offers to be found by.",
  v_proj: "Makes the values: what each token hands over when it is looked at.",
  pre: "Widens each token's vector: one number for every hidden neuron.",
  up: "Widens each token's vector a second time: what the gate lets through.",
  lora_down: "The first of two thin matrices of the low-rank change (LoRA).",
  lora_up: "The second of two thin matrices of the low-rank change (LoRA), scaled.",
};

const LEAVES: Record<string, string> = { tokens: "Token numbers", source: "Source token numbers", "pos.keys": "Positions of the keys", "pos.queries": "Positions of the queries" };

const TEXTS: Record<string, Text> = {
  leaf: (_, address) => ({
    title: LEAVES[address] ?? (/^pos\b|position/.test(address) ? "Positions" : /mask|allowed/.test(address) ? "Who may look at whom" : "Input"),
    plain: "What the model is given: the number of each token in the vocabulary, or its position in the text. Here the arithmetic begins.",
    maths: math(words("given")),
    code: "tokens = tokenizer.encode(text)",
  }),
  lookup: {
    title: "Look up",
    plain: "Takes one row of a learned table for each token. The row is the token's (or its position's) vector; nothing is computed.",
    maths: math(sub(v("y"), v("t")), eq, sub(v("E"), words("row "), sub(v("id"), v("t")))),
    code: "y = F.embedding(ids, table)",
  },
  split: {
    title: "Split",
    plain: "Cuts each vector into equal pieces, one for each head. No number changes.",
    maths: math(sub(v("y"), v("h"), o(","), v("t"), o(","), v("d")), eq, sub(v("x"), v("t"), o(","), v("h"), v("D"), o("+"), v("d"))),
    code: "y = x.view(B, T, H, D).transpose(1, 2)",
  },
  concat: (p) =>
    p.heads
      ? {
          title: "Join the heads",
          plain: "Puts what all heads found side by side into one vector for each token. No number changes.",
          maths: math(sub(v("y"), v("t")), eq, o("["), sub(v("z"), n(0), o(","), v("t")), o(";"), sub(v("z"), n(1), o(","), v("t")), o(";"), o("…"), o("]")),
          code: "y = z.transpose(1, 2).flatten(2)",
        }
      : {
          title: "Side by side",
          plain: "Puts several vectors one after the other into one. No number changes.",
          maths: math(v("y"), eq, o("["), v("a"), o(";"), v("b"), o(";"), o("…"), o("]")),
          code: "y = torch.cat(parts, -1)",
        },
  rope: {
    title: "Rotate (RoPE)",
    plain: "Turns pairs of numbers in queries and keys by an angle that grows with the position. A query and a key then meet at an angle that depends only on how far apart their tokens are.",
    maths: math(sup(sub(v("x"), v("i")), o("′")), eq, sub(v("x"), v("i")), v("cos"), sub(v("θ"), v("t"), o(","), v("i")), o("−"), sub(v("x"), v("j")), v("sin"), sub(v("θ"), v("t"), o(","), v("i")), o(","), sub(v("θ"), v("t"), o(","), v("i")), eq, v("t"), o("·"), sup(words("base"), o("−"), n(2), v("i"), o("/"), v("d"))),
    code: "y = x * cos + rotated(x) * sin",
  },
  qk: {
    title: "Query · key",
    plain: "Compares the query of each token with the key of each other token: both vectors are multiplied number by number and summed. A large sum means that the key fits the query.",
    maths: math(sub(words("score"), v("t"), o(","), v("s")), eq, sum(v("d")), sub(v("q"), v("t"), o(","), v("d")), sub(v("k"), v("s"), o(","), v("d"))),
    code: "s = q @ k.transpose(-1, -2)",
  },
  scale: (p, address) => {
    const by = number(p.by);
    const attention = address.endsWith(".scaled");
    return {
      title: attention ? "Scale the scores" : "Scale",
      plain: attention
        ? `Multiplies every score by ${by}. The usual factor is 1/√d, with d the length of one head's query: sums of more products grow larger, and this takes the growth back.`
        : `Multiplies every number by ${by}.`,
      maths: attention ? math(sup(v("s"), o("′")), eq, n(by), o("·"), v("s")) : math(v("y"), eq, n(by), o("·"), x),
      code: `y = x * ${by}`,
    };
  },
  softcap: (p) => {
    const cap = number(p.cap);
    return {
      title: "Soft cap",
      plain: `Keeps every number between −${cap} and ${cap}, smoothly; small ones hardly change.`,
      maths: math(v("y"), eq, n(cap), o("·"), v("tanh"), paren(frac(x, n(cap)))),
      code: `y = ${cap} * torch.tanh(x / ${cap})`,
    };
  },
  mask: (p) => ({
    title: "Mask",
    plain: p.causal
      ? "Hides the keys that a query may not see, here all later tokens: their score becomes minus infinity, and the softmax gives them exactly 0."
      : "Hides the keys that a query may not see (padding, or what lies outside its window): their score becomes minus infinity. Where nothing is hidden, nothing changes.",
    maths: math(sub(sup(words("score"), o("′")), v("t"), o(","), v("s")), eq, cases([sub(words("score"), v("t"), o(","), v("s")), words(p.causal ? "if s ≤ t and allowed" : "if allowed")], [seq(o("−"), n("∞")), words("otherwise")])),
    code: 'scores = scores.masked_fill(~allowed, float("-inf"))',
  }),
  softmax: (_, address) => ({
    title: "Softmax",
    plain: address.endsWith("pattern")
      ? "Makes shares of each row of scores: all between 0 and 1, together exactly 1. This is how much each token attends to each other one."
      : address.includes("router")
        ? "Makes shares of the router's scores: between 0 and 1 for each expert, together 1."
        : "Makes probabilities of the scores: all between 0 and 1, together exactly 1.",
    maths: math(sub(v("p"), v("j")), eq, frac(e(sub(v("x"), v("j")), o("−"), v("max")), seq(sum(v("i")), e(xi, o("−"), v("max"))))),
    code: "p = x.softmax(-1)",
  }),
  av: {
    title: "Weighted sum of values",
    plain: "Mixes the value vectors by the attention weights: a token that gets 0.4 of the attention gives 0.4 of its value. A strong weight on a small value carries little.",
    maths: math(sub(v("z"), v("t")), eq, sum(v("s")), sub(v("a"), v("t"), o(","), v("s")), sub(v("v"), v("s"))),
    code: "z = pattern @ v",
  },
  linear: (p, address) => {
    const last = address.split(".").pop() ?? "";
    const attention = address.includes(".attn.") || address.includes(".cross.");
    const own = LINEAR[last] ?? (last === "write" ? (attention ? "Mixes what the heads found and writes it for the residual stream." : "Brings the hidden neurons back to the model's width and writes the result for the residual stream.") : "");
    return {
      title: last === "write" ? (attention ? "Project the heads" : "Down") : last in LINEAR ? last.replace("_proj", "").replace("lora_", "LoRA ") : "Linear",
      plain: `${own}${own ? " " : ""}Each number of the result is the input vector times one row of the weight matrix, summed, and a bias where there is one.`,
      maths: math(sub(v("y"), v("o")), eq, sum(v("i")), sub(v("W"), v("o"), o(","), v("i")), xi, o("+"), sub(v("b"), v("o"))),
      code: p.factor === undefined ? "y = F.linear(x, weight, bias)" : `y = F.linear(x, weight) * ${number(p.factor)}`,
    };
  },
  lm_head: {
    title: "Logits",
    plain: "Compares each token's last vector with the vector of every word of the vocabulary. The sum is that word's score (logit) as the next one, or as the hidden one.",
    maths: math(sub(words("logit"), v("w")), eq, sum(v("i")), sub(v("E"), v("w"), o(","), v("i")), sub(v("h"), v("i")), o("+"), sub(v("b"), v("w"))),
    code: "logits = F.linear(h, table, bias)",
  },
  classify: {
    title: "Label scores",
    plain: "Compares the text's vector with one learned vector for each label. The sum is the label's score.",
    maths: math(sub(v("y"), v("l")), eq, sum(v("i")), sub(v("W"), v("l"), o(","), v("i")), xi, o("+"), sub(v("b"), v("l"))),
    code: "scores = F.linear(x, weight, bias)",
  },
  router: {
    title: "Router",
    plain: "Gives each expert a score for this token: how well the token's vector fits the expert's own learned vector.",
    maths: math(sub(v("r"), v("e")), eq, sum(v("i")), sub(v("W"), v("e"), o(","), v("i")), xi),
    code: "scores = F.linear(x.float(), router.weight.float())",
  },
  topk: (p) => ({
    title: p.gives === "chosen" ? "Chosen experts" : "Weights of the chosen experts",
    plain:
      p.gives === "chosen"
        ? "Which experts have the highest shares: only these compute anything for this token."
        : p.normalize
          ? "The highest shares, divided by their sum so that they add up to 1 again."
          : "The highest shares, as the router gave them.",
    maths: p.gives === "chosen" ? math(v("c"), eq, sub(words("argtop"), v("k")), v("p")) : p.normalize ? math(sub(v("w"), v("j")), eq, frac(sub(v("p"), sub(v("c"), v("j"))), seq(sum(v("i")), sub(v("p"), sub(v("c"), v("i")))))) : math(sub(v("w"), v("j")), eq, sub(v("p"), sub(v("c"), v("j")))),
    code: p.normalize ? "weight, chosen = p.topk(k)\nweight = weight / weight.sum(-1, keepdim=True)" : "weight, chosen = p.topk(k)",
  }),
  add: {
    title: "Add",
    plain: "Adds several vectors number by number.",
    maths: math(v("y"), eq, v("a"), o("+"), v("b"), o("+"), o("…")),
    code: "y = a + b",
  },
  residual: {
    title: "Add to the residual stream",
    plain: "Adds what this part wrote to the stream that runs through all layers. Nothing is replaced: every later part still sees what was there before.",
    maths: math(sup(x, o("′")), eq, x, o("+"), words("write")),
    code: "x = x + write",
  },
  act: (p) => {
    const name = String(p.act ?? "");
    const known = ACTIVATIONS[name];
    return {
      title: `Activation ${name}`,
      plain: known?.plain ?? "A fixed curve, applied to every number alone.",
      maths: math(v("y"), eq, known?.maths ?? seq(v("f"), paren(x))),
      code: `y = ${known?.code ?? `${name || "f"}(x)`}`,
    };
  },
  glu: {
    title: "Gate",
    plain: "Multiplies two vectors number by number: the gate decides how much of each number passes.",
    maths: math(sub(v("y"), v("i")), eq, sub(words("gate"), v("i")), o("·"), sub(words("up"), v("i"))),
    code: "y = gate * up",
  },
  norm: (p) => {
    const type = String(p.type ?? "layer");
    if (type === "unit")
      return { title: "Length 1", plain: "Divides each vector by its length; only its direction is left.", maths: math(v("y"), eq, frac(x, seq(o("‖"), x, o("‖")))), code: "y = F.normalize(x, dim=-1)" };
    if (type === "rms") {
      const offset = typeof p.offset === "number" && p.offset !== 0;
      return {
        title: "RMSNorm",
        plain: `Divides each token's vector by its root mean square, so that its numbers have a common size, then multiplies each by a learned gain${offset ? ` (the stored number plus ${number(p.offset)})` : ""}. The mean is not taken away.`,
        maths: math(sub(v("y"), v("i")), eq, frac(xi, root(seq(frac(n(1), v("d")), sum(v("j")), sup(sub(v("x"), v("j")), n(2)), o("+"), v("ε")))), o("·"), offset ? paren(sub(v("g"), v("i")), o("+"), n(number(p.offset))) : sub(v("g"), v("i"))),
        code: "y = F.rms_norm(x, x.shape[-1:], gain, eps)",
      };
    }
    return {
      title: "LayerNorm",
      plain: "Takes the mean from each token's vector and divides by the standard deviation, so that its numbers have a common size; then a learned gain and shift for each dimension.",
      maths: math(sub(v("y"), v("i")), eq, frac(seq(xi, o("−"), v("µ")), root(seq(sup(v("σ"), n(2)), o("+"), v("ε")))), o("·"), sub(v("γ"), v("i")), o("+"), sub(v("β"), v("i"))),
      code: "y = F.layer_norm(x, x.shape[-1:], gain, shift, eps)",
    };
  },
  edit: {
    title: "Edit",
    plain: "You changed this value: what follows is computed from yours, not from the model's own.",
    maths: math(sup(x, o("′")), eq, words("edit"), paren(x)),
    code: "x = edit(x)",
  },
  generic: {
    title: "A function of PyTorch",
    plain: "One call of the model's own code; the line below says which. Any of its numbers opens to the operands that it read.",
    maths: math(v("y"), eq, v("f"), paren(x)),
    code: "y = f(x)",
  },
};

/** Every kind that has a text of its own. */
export const KINDS: readonly string[] = Object.keys(TEXTS);

/** The texts of one operation: by its kind, what its parameters say, and for a linear layer its place. */
export function textOf(kind: string, params: Params = {}, address = ""): KindText {
  const text = TEXTS[kind];
  if (!text) return { ...(TEXTS.generic as KindText), title: kind };
  return typeof text === "function" ? text(params, address) : text;
}
