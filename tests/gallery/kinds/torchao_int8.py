"""torchao converts a language model's weights to int8, and the model generates.

Needs: torchao, transformers
"""

import torch
from torchao.quantization import Int8WeightOnlyConfig, quantize_
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=32000,
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=12,
    num_attention_heads=16,
    num_key_value_heads=4,
)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
quantize_(model, Int8WeightOnlyConfig())
prompt = torch.randint(32000, (4, 256), device="cuda")
with torch.inference_mode():
    tokens = model.generate(prompt, max_new_tokens=16, do_sample=False, pad_token_id=0)
torch.cuda.synchronize()
print(tuple(tokens.shape))
print("done: 16 tokens")
