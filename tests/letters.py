"""A tokenizer of 128 tokens, which fits the vocabulary of the small models: single characters, and a few that melt."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, processors
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<pad>", "<s>", "</s>"]
CHARACTERS = ["\n", *map(chr, range(32, 127))]
MERGES = [("=", " "), ("t", "h"), ("th", "e"), (" ", "a"), (" ", "b"), ("e", "r"), ("i", "n"), ("in", "g")]
# Says who speaks, and the date of today.
CHAT = (
    "{{ strftime_now('%d %b %Y') }}\n{% for m in messages %}{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant>{% endif %}"
)


def letters(*, opening: bool = False, chat: str | None = None, pad: bool = True) -> PreTrainedTokenizerFast:
    """The tokenizer, with <s> before every text if there is an opening."""
    words = [*SPECIAL, *CHARACTERS, *[a + b for a, b in MERGES]]
    backend = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, MERGES))
    backend.decoder = decoders.Fuse()
    if opening:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    named = {"pad_token": "<pad>"} if pad else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", chat_template=chat, **named
    )
