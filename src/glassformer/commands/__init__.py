"""The verbs of the command line, a file each: EXAMPLES and the typed function ``run``, or several as
TASKS. None imports torch before it runs."""

GROUPS = {
    "train": {
        "train": "Train a model as the run file RUN.toml says, or with the defaults.",
        "compare": "Several models on the same data under one budget: one table and one picture.",
        "average": "One model of the mean weights of a run's last checkpoints.",
        "data": "A corpus: what it holds and where it lies.",
        "cost": "Parameters, FLOPs and memory, from the config alone.",
        "recipes": "The families and their sizes.",
    },
    "use": {
        "generate": "Continue a text, token by token.",
        "translate": "From a source text to a target text (translation, summaries): the best that a "
        "beam search finds.",
        "fill": "Fill the blanks of a text, written ___ or as the tokenizer's mask token.",
        "embed": "One vector for each text, and how alike the texts are.",
        "classify": "The label of each text or pair of texts, or of each word.",
        "eval": "How well a model predicts a text; how good its translations are; how often its "
        "labels are right.",
    },
    "inspect": {
        "look": "Any named value inside the model while it reads a text.",
        "why": "One number of a forward pass, opened to its arithmetic: its operands and their "
        "addresses.",
        "lens": "What each depth of a model would say: the logit lens, and a tuned lens.",
        "attribution": "What each head, MLP, expert, embedding and bias added to a logit.",
        "patch": "Where what tells two texts apart passes through: activation patching, layer by "
        "layer.",
        "saliency": "What an answer owes to each token of the text: gradients and integrated "
        "gradients.",
        "neurons": "Where in a corpus a neuron, or an expert's share of the router, is greatest.",
        "heads": "What each attention head does, as numbers: previous, induction, duplicate, sink, "
        "beside a baseline.",
        "contexts": "One word in two texts: how alike its vectors are, layer by layer.",
        "masks": "Who may look at whom: a rule's picture and the pairs it visits.",
        "verify": "Exactness: cache, padding, engines, formats, saved weights, each beside the "
        "plain pass, with its bound.",
    },
    "serve and convert": {
        "serve": "Models behind the paths of OpenAI's API: completions, chat, embeddings; and a "
        "look inside.",
        "page": "All of it in a browser: type a sentence, look inside; watch a training.",
        "convert": "Save a model in another layout: Hugging Face's or our own; or another library's "
        "file as a model.",
        "quantize": "Weights of 8 or 4 bits, and what that costs: by layer and matrix, in logits, "
        "perplexity and size.",
    },
    "tokens and words": {
        "tokens": "A text as tokens, under several tokenizers side by side; train one; how large it "
        "should be.",
        "words": "Words as numbers: word2vec, bags of words, one word in two contexts.",
    },
    "learn and help": {
        "learn": "Exercises that check themselves: a file with TODOs, a check in seconds, hints, "
        "the solution.",
        "define": "A term of the field: a sentence, the formula, the line of code, a number of a "
        "model.",
        "docs": "The site: the course, how to do each task, the reference; opened offline.",
        "doctor": "What computes on this machine and why: versions, processor, kernels, threads, "
        "memory; what of a model's folder loads.",
        "completion": "What teaches a shell to complete commands, options and settings with the tab "
        "key.",
    },
}
"""Each verb's sentence, in the order of ``glassformer --help``; a file is named for its verb."""

VERBS = {verb: sentence for group in GROUPS.values() for verb, sentence in group.items()}
