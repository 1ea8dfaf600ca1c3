"""A Llama answers greedily, by sampling, by beams, and with penalties and several sequences.

Needs: transformers
"""

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM


def main() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
    )
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
    words = torch.randint(3, 32000, (8, 128), device="cuda")
    fixed = {"min_new_tokens": 48, "max_new_tokens": 48, "pad_token_id": 0}
    ways = [
        GenerationConfig(do_sample=False, **fixed),
        GenerationConfig(do_sample=True, top_k=50, top_p=0.9, temperature=0.8, **fixed),
        GenerationConfig(num_beams=4, length_penalty=0.8, early_stopping=True, **fixed),
        GenerationConfig(
            do_sample=True,
            num_return_sequences=3,
            repetition_penalty=1.2,
            no_repeat_ngram_size=3,
            min_p=0.05,
            **fixed,
        ),
        GenerationConfig(
            do_sample=False,
            output_scores=True,
            output_hidden_states=True,
            return_dict_in_generate=True,
            **fixed,
        ),
    ]
    mask = torch.ones_like(words)
    for way in ways:
        answer = model.generate(words, attention_mask=mask, generation_config=way)
        sequences = answer if isinstance(answer, torch.Tensor) else answer.sequences
        assert sequences.shape[1] == 176
    print(f"done: {len(ways)} ways")


main()
