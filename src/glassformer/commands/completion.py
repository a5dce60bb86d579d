"""``glassformer completion``: what teaches a shell to complete the command line."""

from __future__ import annotations

from typing import Literal

from .parsing import Words

EXAMPLES = (
    "glassformer completion bash >> ~/.bashrc",
    "glassformer completion zsh >> ~/.zshrc",
    "glassformer completion fish > ~/.config/fish/completions/glassformer.fish",
)
SHELLS = {
    "bash": """_glassformer() {
    local IFS=$'\\n'
    COMPREPLY=($(glassformer completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _glassformer glassformer""",
    "zsh": """_glassformer() {
    local found=(${(f)"$(glassformer completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    (( $#found )) && compadd -a found || _files
}
compdef _glassformer glassformer""",
    "fish": """complete -c glassformer \\
    -a '(glassformer completion words -- (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'""",
}


def run(shell: Literal["bash", "zsh", "fish", "words"], words: Words = ()) -> None:
    """Prints a shell script that completes the command line.

    shell: the shell; words prints the completions of the last WORD
    words WORD: with words: the command line so far
    """
    print(SHELLS[shell] if shell in SHELLS else "\n".join(candidates(words)))


def candidates(words: Words) -> list[str]:
    """Returns the completions of the last of these words; none where it is a file or free text."""
    from ..cli import parser

    *before, last = words or [""]
    command = parser(before[:1])
    while before and before[0] in command.verbs:
        command = command.verbs[before.pop(0)]
    asking = command.pending_option(before)
    if asking is not None:
        choices = [str(choice) for choice in asking.choices or ()]
    elif command.verbs:
        choices = [*command.verbs, *command.options]
    elif last.startswith("-"):
        from ..runs import settings

        more = (
            dict.fromkeys(f"--{setting.path}" for setting in settings.all_settings())
            if command.get_default("open")
            else ()
        )
        choices = [*command.options, *more]
    else:
        choices = [
            str(choice)
            for action in command._get_positional_actions()
            for choice in action.choices or ()
        ]
    return [word for word in choices if word.startswith(last)]
