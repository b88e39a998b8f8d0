"""Trains a byte-level BPE tokenizer of 512 tokens on text: `make_tokenizer.py TEXT FOLDER`."""

import json
import sys
from pathlib import Path

from tokenizers import ByteLevelBPETokenizer

text, folder = Path(sys.argv[1]), Path(sys.argv[2])
tokenizer = ByteLevelBPETokenizer()
tokenizer.train([str(file) for file in sorted(text.rglob("*.py"))], vocab_size=512, special_tokens=["<|endoftext|>"])
folder.mkdir(parents=True, exist_ok=True)
tokenizer.save(str(folder / "tokenizer.json"))
names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
(folder / "tokenizer_config.json").write_text(json.dumps(names))
