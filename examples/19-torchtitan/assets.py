"""Makes the files that TorchTitan's repository has and its package lacks: a tokenizer, and text as its `c4_test`."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

text = [path.read_text() for path in sorted(Path(json.__file__).parent.glob("*.py"))]
lines = [line for source in text for line in source.splitlines() if len(line) > 20]

data = Path("tests/assets/c4_test")
data.mkdir(parents=True)
(data / "data.json").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
special = ["<|begin_of_text|>", "<|end_of_text|>"]
tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=2000, special_tokens=special))
folder = Path("tests/assets/tokenizer")
folder.mkdir()
tokenizer.save(str(folder / "tokenizer.json"))
(folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": special[0], "eos_token": special[1]}))
