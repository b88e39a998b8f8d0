"""The second run of this program finds the code that the first one compiled, on this machine or another one."""

import torch

from muster_components.parts.compiled_code import CompiledCode

code = CompiledCode("compiled-code", key={"model": "mlp", "width": 64})
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
loss = torch.compile(model)(torch.randn(8, 64)).square().mean()
loss.backward()
print(f"compiled code: {'loaded' if code.loaded else 'compiled'}, {'saved' if code.save() else 'nothing to save'}")
