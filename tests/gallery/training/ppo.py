"""Proximal policy optimization on many carts at once; updates end early if the policy diverges."""

import torch
from torch import nn
from torch.distributions import Normal

CARTS, LENGTH, OBSERVED, ACTIONS = 2048, 64, 48, 12


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBSERVED, 512), nn.ELU(), nn.Linear(512, 256), nn.ELU())
        self.mean, self.value = nn.Linear(256, ACTIONS), nn.Linear(256, 1)
        self.deviation = nn.Parameter(torch.zeros(ACTIONS))

    def forward(self, seen):
        x = self.body(seen)
        return Normal(self.mean(x), self.deviation.exp()), self.value(x).squeeze(-1)


class Carts:
    def __init__(self):
        self.moves = torch.randn(ACTIONS, OBSERVED, device="cuda") * 0.1
        self.state = torch.randn(CARTS, OBSERVED, device="cuda")

    def step(self, action):
        self.state = 0.95 * self.state + action.tanh() @ self.moves
        reward = -self.state.square().mean(-1)
        over = self.state.abs().amax(-1) > 4
        self.state = torch.where(over[:, None], torch.randn_like(self.state), self.state)
        return reward, over


def collect(policy, carts):
    kept = []
    for _ in range(LENGTH):
        seen = carts.state
        with torch.no_grad():
            chances, value = policy(seen)
            action = chances.sample()
            reward, over = carts.step(action)
        kept.append((seen, action, chances.log_prob(action).sum(-1), value, reward, over))
    seen, action, chance, value, reward, over = (
        torch.stack(each) for each in zip(*kept, strict=True)
    )
    gain, gains, after = torch.zeros(CARTS, device="cuda"), [], value[-1]
    for t in reversed(range(LENGTH)):
        error = reward[t] + 0.99 * after * ~over[t] - value[t]
        gain = error + 0.99 * 0.95 * gain * ~over[t]
        gains.append(gain)
        after = value[t]
    gains = torch.stack(gains[::-1])
    return [part.flatten(0, 1) for part in (seen, action, chance, gains, gains + value)]


torch.manual_seed(0)
policy, carts = Policy().cuda(), Carts()
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
for _ in range(2):
    seen, action, chance, gains, returns = collect(policy, carts)
    gains = (gains - gains.mean()) / (gains.std() + 1e-8)
    for _ in range(4):
        for part in torch.randperm(len(seen), device="cuda").chunk(4):
            chances, value = policy(seen[part])
            ratio = (chances.log_prob(action[part]).sum(-1) - chance[part]).exp()
            clipped = ratio.clamp(0.8, 1.2)
            loss = -torch.min(ratio * gains[part], clipped * gains[part]).mean()
            loss = (
                loss
                + 0.5 * (value - returns[part]).square().mean()
                - 0.01 * chances.entropy().mean()
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()
        if ((ratio - 1) - ratio.log()).mean().item() > 0.05:
            break
print("done: 2 rounds")
