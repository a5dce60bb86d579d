"""The verbs of the command line, a file each: EXAMPLES and the typed function ``run``, or several as
TASKS. None imports torch before it runs."""

GROUPS = {
    "train": {
        "train": "Train a model from a run file, or with settings chosen from the text.",
        "compare": "Train several models on the same data and budget; compare them in a table and a "
        "picture.",
        "average": "Average the weights of a run's last checkpoints into one model.",
        "data": "Describe a corpus: its contents and its location.",
        "cost": "Compute parameters, FLOPs and memory from the config alone.",
        "recipes": "List the families and their sizes.",
    },
    "use": {
        "generate": "Continue a text, token by token.",
        "chat": "Talk with a model in the terminal, by its own chat template.",
        "translate": "Translate or summarise a source text by beam search.",
        "fill": "Fill the blanks of a text, written ___ or as the tokenizer's mask token.",
        "embed": "Embed each text as a vector; compare the texts.",
        "classify": "Label each text, each pair of texts, or each word.",
        "eval": "Evaluate a model: the loss of a text, the quality of translations, the accuracy of "
        "labels.",
    },
    "inspect": {
        "look": "Show any named value inside the model while it reads a text.",
        "why": "Explain one number of a forward pass: its arithmetic, its operands and their "
        "addresses.",
        "lens": "Show what each layer would predict: the logit lens and the tuned lens.",
        "attribution": "Show how much each head, MLP, expert, embedding and bias added to a logit.",
        "patch": "Locate the difference between two texts in the model: activation patching, layer by "
        "layer.",
        "circuit": "Find the heads, MLPs and tokens that carry an answer and the edges between them; "
        "measure what they keep alone.",
        "probe": "Fit linear probes of the labels of texts, layer by layer, beside shuffled labels; save a "
        "direction (a control vector).",
        "features": "Show the sparse features of a value: active at a text, what one is for, how much of the "
        "loss they keep (sparse autoencoders, transcoders).",
        "saliency": "Score each token of the text by its influence on the answer: gradients and "
        "integrated gradients.",
        "neurons": "Find the texts of a corpus where a neuron, or a router's share for an expert, is "
        "greatest.",
        "heads": "Score each attention head: previous token, induction, duplicate, sink, each with a "
        "baseline.",
        "contexts": "Compare one word's vectors in two texts, layer by layer.",
        "masks": "Draw an attention mask, and count the pairs of tokens that it allows.",
        "verify": "Check that cache, padding, engines, formats and saved weights match the plain pass "
        "within a bound.",
    },
    "serve and convert": {
        "serve": "Serve models by OpenAI's API: completions, chat, embeddings; and inspection.",
        "page": "Open the page in a browser: explore a model, or watch a training.",
        "convert": "Save a model in another layout (Hugging Face, GGUF), or import another library's "
        "file.",
        "quantize": "Quantize weights to 8 or 4 bits, and measure the loss by layer and matrix, in "
        "logits, perplexity and size.",
    },
    "tokens and words": {
        "tokens": "Compare tokenizers on a text, train one, or choose its size.",
        "words": "Train and compare word vectors: word2vec, bags of words, one word in two contexts.",
    },
    "learn and help": {
        "learn": "Solve exercises with automatic checks: a file with TODOs, hints, the solution.",
        "define": "Define a term of the field: a sentence, the formula, the line of code, a number of "
        "a model.",
        "docs": "Open the documentation site offline: course, tasks, reference.",
        "doctor": "Show what computes on this machine and why: versions, processor, kernels, threads, "
        "memory; or what of a model's folder loads.",
        "completion": "Print a shell script that completes commands, options and settings with the tab "
        "key.",
    },
}
"""Each verb's sentence, in the order of ``glassformer --help``; a file is named for its verb."""

VERBS = {verb: sentence for group in GROUPS.values() for verb, sentence in group.items()}
