"""The field's other words for what a setting or an option is called here, for hints in errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

WORDS = {
    "accumulate": "accumulation_steps grad_accum gradient_accumulation gradient_accumulation_steps",
    "act": "activation activation_function hidden_act",
    "batch": "batch_size bs micro_batch_size mini_batch per_device_train_batch_size "
    "train_batch_size",
    "beams": "beam_size beam_width num_beams",
    "clip": "clip_grad clip_grad_norm grad_clip gradient_clip max_grad_norm",
    "context": "block_size context_length ctx max_length max_position_embeddings max_seq_len "
    "n_ctx seq_len",
    "data": "corpus dataset file input test",
    "data.tokenizer": "tokenizer",
    "data.train": "data corpus data_path dataset file input text train_file training",
    "data.valid": "dev val validation valid_file",
    "depth": "layers n_layer n_layers num_hidden_layers num_layers",
    "device": "cuda gpu gpus",
    "dim": "d_model embed_dim embedding_size hidden_size n_embd width",
    "dropout": "attention_dropout drop dropout_p hidden_dropout resid_pdrop",
    "dtype": "amp bf16 fp16 half mixed_precision precision torch_dtype",
    "early_stop": "early_stopping early_stopping_patience patience",
    "eps": "layer_norm_eps layer_norm_epsilon norm_eps rms_norm_eps",
    "epochs": "epoch num_epochs",
    "evaluate_batches": "eval_batches eval_iters",
    "evaluate_every": "eval_every eval_interval eval_steps val_interval",
    "experts": "n_experts num_experts num_local_experts",
    "from": "checkpoint init_from load pretrained",
    "heads": "n_head n_heads num_attention_heads num_heads",
    "hidden": "d_ff ffn_dim inner_dim intermediate_size mlp_dim",
    "kv_heads": "n_kv_head n_kv_heads num_key_value_heads num_kv_heads",
    "lr": "learning_rate max_lr rate",
    "max_new": "length max_length max_new_tokens max_tokens n_predict n_tokens num_tokens tokens",
    "minutes": "epochs iters max_iters max_steps steps time",
    "objective": "loss task",
    "optimizer": "optim optimiser",
    "optimizer.betas": "beta1 beta2 adam_beta1 adam_beta2 betas",
    "optimizer.weight_decay": "decay l2 wd",
    "out": "html o output output_dir output_file out_dir save save_dir",
    "prompts": "file input_file prompt_file",
    "resume": "resume_from_checkpoint continue",
    "samples": "n num_return_sequences num_samples",
    "save_every": "checkpoint_every save_interval save_steps",
    "schedule": "lr_scheduler lr_scheduler_type scheduler",
    "schedule.floor": "end_lr min_lr",
    "schedule.warmup": "warmup warmup_iters warmup_ratio warmup_steps",
    "mask": "attention_window sliding_window window",
    "seed": "manual_seed random_seed",
    "steps": "epochs iterations iters max_epochs max_iters max_steps num_epochs num_steps "
    "num_train_epochs",
    "temperature": "t temp",
    "theta": "rope_base rope_theta",
    "top": "k limit most n num",
    "top_k": "num_experts_per_tok num_experts_per_token",
    "use": "import module plugin",
    "vocab": "n_vocab vocab_size vocabulary",
}
ELSEWHERE = dict.fromkeys(
    ("threads", "num_threads", "n_threads", "cpus"), "Set OMP_NUM_THREADS before the command."
)
"""Advice for settings that are wished for and do not exist here."""


def nearest(word: str, words: Iterable[str]) -> str:
    """A closing hint for an unknown word: ' Did you mean "depth"?', or the whole short list.

    ``words`` may be options (--max-new) and dotted paths (decoder.depth); a word of the field's
    finds ours among them.
    """
    plain = {option.lstrip("-").replace("-", "_"): option for option in sorted(set(words))}
    query = word.lstrip("-").replace("-", "_").lower()
    if query in ELSEWHERE:
        return f" {ELSEWHERE[query]}"
    names = [query, *(term for term, synonyms in WORDS.items() if query in synonyms.split())]
    # one setting above all the deep ones of its kind: steps before see.step
    if f"{query}s" in plain:
        return f' Did you mean "{plain[f"{query}s"]}"?'
    for name in names:
        last = name.rpartition(".")[2]  # inside of its table a setting stands without its path
        depths = {
            option: option.count(".") - 2 * (".pattern." in option)  # that of its block
            for option in plain
            if option in (name, last) or option.endswith(f".{name}")
        }
        if depths:
            least = min(depths.values())
            meant = [f'"{plain[option]}"' for option in depths if depths[option] == least]
            return f" Did you mean {' or '.join(meant[:2])}?"
    close = difflib.get_close_matches(query, plain, n=3, cutoff=0.6)
    if close:
        # two letters that changed places
        anagrams = [option for option in close if sorted(option) == sorted(query)]
        return f' Did you mean "{plain[(anagrams or close)[0]]}"?'
    if 0 < len(plain) <= 30:
        return f" Known: {', '.join(plain.values())}."
    return ""
