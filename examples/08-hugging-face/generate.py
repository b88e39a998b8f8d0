"""Opens a saved model with Transformers and continues a text: `generate.py MODEL TOKENIZER`."""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[2])
start = tokenizer("def ", return_tensors="pt")
tokens = model.generate(**start, max_new_tokens=20, do_sample=False, pad_token_id=0)
print(f"{type(model).__name__} with {model.num_parameters():,} parameters continues: {tokenizer.decode(tokens[0])!r}")
