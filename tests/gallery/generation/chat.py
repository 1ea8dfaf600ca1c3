"""A chat model streams its answer, and stops by criteria of the program's own.

Needs: transformers
Sizes depend on data.
"""

from threading import Thread

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    StoppingCriteria,
    StoppingCriteriaList,
    TextIteratorStreamer,
)

WORDS = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(7996))]
TEMPLATE = "{% for m in messages %}<s> {{ m['content'] }} {% endfor %}"


class Repeats(StoppingCriteria):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: object) -> torch.Tensor:
        return (input_ids[:, -4:] == input_ids[:, -1:]).all(dim=1)


def main() -> None:
    torch.manual_seed(0)
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.chat_template = TEMPLATE
    config = Qwen2Config(
        vocab_size=8000,
        hidden_size=1280,
        intermediate_size=3456,
        num_hidden_layers=10,
        num_attention_heads=16,
        num_key_value_heads=4,
        eos_token_id=2,
    )
    model = Qwen2ForCausalLM(config).to("cuda", torch.bfloat16).eval()
    question = [{"role": "user", "content": " ".join(f"w{i}" for i in range(800))}]
    inputs = tokenizer.apply_chat_template(question, return_tensors="pt", return_dict=True)
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
    options = {
        **inputs.to("cuda"),
        "streamer": streamer,
        "max_new_tokens": 64,
        "do_sample": True,
        "stopping_criteria": StoppingCriteriaList([Repeats()]),
    }
    thread = Thread(target=model.generate, kwargs=options)
    thread.start()
    answer = "".join(streamer)
    thread.join()
    assert answer
    print("done: an answer")


main()
