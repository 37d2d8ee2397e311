"""A plain PyTorch loop made private. The README shows it as a diff of the plain one."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import steppe

torch.manual_seed(0)
inputs = torch.randn(12_000, 20)
labels = (inputs[:, :2].sum(1) > 0).long()
train_set = TensorDataset(inputs[:10_000], labels[:10_000])
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

plan = steppe.Plan(epsilon=2.0, delta=1e-5, population=10_000, batch_size=250, epochs=10)
private = steppe.make_private(model, optimizer, train_set, plan, loss=F.cross_entropy)
for batch in private:
    private.step(batch)

accuracy = (model(inputs[10_000:]).argmax(1) == labels[10_000:]).float().mean()
print(f"accuracy {accuracy:.3f}")
print(f"{private.steps_done} steps, ε = {private.epsilon():.4f} at δ = {plan.delta:g}")
