"""The models of the parity tests: name → changes of the tiny Llama's config."""

from __future__ import annotations

from typing import Any

TOLERANCE = 1e-4
"""max|Δ| / std of the logits, in f32."""

MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "head64_ratio3": {"head_dim": 64, "num_attention_heads": 6, "num_key_value_heads": 2},
    "head96_ratio4": {"head_dim": 96, "num_attention_heads": 4, "num_key_value_heads": 1},
    "head128_ratio7": {"head_dim": 128, "num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 112},
    "head256_ratio1": {"head_dim": 256, "num_attention_heads": 2, "num_key_value_heads": 2},
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}
