"""Small tokenizers with chat templates of the kinds that are about."""

from pathlib import Path
from typing import Any

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}{{ '\\n' }}"
    "{% else %}{{ message.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = (  # as Qwen3: earlier turns lose their thoughts, the last one always has the tags
    "{% for message in messages %}"
    "{% set content = message.content %}{% set thought = '' %}"
    "{% if '</think>' in content %}"
    "{% set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' and loop.last %}<think>\n{{ thought }}\n</think>\n\n{% endif %}"
    "{{ content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (  # BOS in the template, contents trimmed
    "{{ bos_token }}{% for message in messages %}[{{ message.role }}]\n\n{{ message.content | trim }}<|eot|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}[assistant]\n\n{% endif %}"
)
MISTRAL = (  # no generation prompt, no system turn
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'system' %}"
    "{{ raise_exception('no system turn') }}{% elif message.role == 'user' %}[INST] {{ message.content }} [/INST]"
    "{% else %} {{ message.content }}</s>{% endif %}{% endfor %}"
)
TOOLS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<call>{{ call.function.name }}</call>{% endfor %}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DATED = "{{ strftime_now('%Y-%m-%d') }}\n" + CHATML
CORPUS = ["the cat sat on the mat and the dog sat on the log", "user assistant system", "two plus two is four, hello"]


def save_tokenizer(folder: Path, template: str | None, *, adds_bos: bool = False) -> Path:
    """A byte-level BPE of 320 words, saved as a model folder would have it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot|>"]
    whole: Any = Tokenizer(models.BPE())
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    whole.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    whole.train_from_iterator(CORPUS, trainer)
    if adds_bos:
        whole.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=whole, bos_token="<s>", eos_token="</s>", additional_special_tokens=special[2:]
    )
    fast.chat_template = template
    fast.save_pretrained(folder)
    return folder
