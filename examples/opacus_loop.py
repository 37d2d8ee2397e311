"""A loop written for Opacus. One import has changed: `from opacus import PrivacyEngine`."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from steppe.compat import PrivacyEngine

torch.manual_seed(0)
inputs = torch.randn(12_000, 20)
labels = (inputs[:, :2].sum(1) > 0).long()
train_set = TensorDataset(inputs[:10_000], labels[:10_000])
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
loader = DataLoader(train_set, batch_size=250, shuffle=True)

engine = PrivacyEngine()
model, optimizer, loader = engine.make_private_with_epsilon(
    module=model,
    optimizer=optimizer,
    data_loader=loader,
    target_epsilon=2.0,
    target_delta=1e-5,
    epochs=10,
    max_grad_norm=1.0,
)
for _ in range(10):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

model.eval()
accuracy = (model(inputs[10_000:]).argmax(1) == labels[10_000:]).float().mean()
print(f"accuracy {accuracy:.3f}")
print(f"ε = {engine.get_epsilon(delta=1e-5):.4f} at σ = {optimizer.noise_multiplier:.4f}")
