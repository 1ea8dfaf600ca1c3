"""Small configurations of many model families, as Hugging Face's hub has them in config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_DECODER = {
    "vocab_size": 1000,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_BLOCKS = {"num_attention_heads": 4, "attention_head_dim": 32, "num_layers": 2, "sample_size": 16}

TEXT: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **_DECODER},
    "qwen": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **_DECODER,
        "head_dim": 32,
        "tie_word_embeddings": True,
    },
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", **_DECODER},
    "mixtral": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        **_DECODER,
        "num_local_experts": 4,
    },
    "gemma": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        **_DECODER,
        "head_dim": 32,
        "sliding_window": 64,
    },
    "phi": {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", **_DECODER},
    "deepseek": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        **_DECODER,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 64,
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "kv_lora_rank": 32,
        "q_lora_rank": 64,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
        "first_k_dense_replace": 1,
    },
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": 1000,
        "n_embd": 128,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 256,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "t5": {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "vocab_size": 1000,
        "d_model": 128,
        "d_kv": 32,
        "d_ff": 256,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 0,
    },
}
"""Models that generate text."""

ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        "vocab_size": 1000,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
    },
    "vit": {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 64,
        "id2label": {"0": "no", "1": "yes", "2": "perhaps"},
    },
}

SPEECH: dict[str, dict[str, Any]] = {
    "whisper": {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "vocab_size": 1000,
        "d_model": 128,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 256,
        "decoder_ffn_dim": 256,
        "max_source_positions": 100,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "decoder_start_token_id": 1,
    },
}

DIFFUSION: dict[str, dict[str, Any]] = {
    "dit": {"_class_name": "DiTTransformer2DModel", **_BLOCKS, "in_channels": 4, "out_channels": 8},
    "pixart": {
        "_class_name": "PixArtTransformer2DModel",
        **_BLOCKS,
        "cross_attention_dim": 128,
        "caption_channels": 64,
    },
    "sd3": {
        "_class_name": "SD3Transformer2DModel",
        **_BLOCKS,
        "joint_attention_dim": 64,
        "caption_projection_dim": 128,
        "pooled_projection_dim": 64,
        "pos_embed_max_size": 32,
    },
    "flux": {
        "_class_name": "FluxTransformer2DModel",
        "num_attention_heads": 4,
        "attention_head_dim": 32,
        "num_layers": 1,
        "num_single_layers": 1,
        "joint_attention_dim": 64,
        "pooled_projection_dim": 64,
        "axes_dims_rope": [8, 12, 12],
        "guidance_embeds": True,
    },
    "unet": {
        "_class_name": "UNet2DConditionModel",
        "sample_size": 16,
        "block_out_channels": [32, 64],
        "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
        "cross_attention_dim": 64,
        "layers_per_block": 1,
        "attention_head_dim": 4,
    },
}

ALL = TEXT | ENCODERS | SPEECH | DIFFUSION


def write_configurations(folder: Path) -> None:
    """Writes each configuration to a config.json in a subfolder of its own."""
    for name, values in ALL.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(values))
