"""A run in plain torch, with torch's own SGD."""

import dataclasses

import torch
from torch import nn


def by_hand(simulation, clients_of_round, parts):
    """Plain torch: one model, torch's own SGD, the same mini-batches, one client after the other."""
    model = nn.Sequential(*(parts.modules[name] for name in parts.chain)).double()
    method, federation = simulation.config.method, simulation.federation
    for number in range(method.rounds):
        for client in clients_of_round(number):
            rate = method.lr * method.lr_decay**number
            sgd = torch.optim.SGD(model.parameters(), rate, momentum=method.momentum, weight_decay=method.weight_decay)
            order = dataclasses.replace(simulation.server.request("train", [client]), round=number)
            (table,) = simulation.engine.drawing.draw(order, client).phases
            for index, count in zip(table.samples, table.real, strict=True):
                index = torch.from_numpy(index[0, :count])
                sgd.zero_grad()
                x = (federation.source.x[index].double() - 127.5) / 127.5
                nn.functional.cross_entropy(model(x), federation.source.y[index]).backward()
                sgd.step()
    return {f"{name}.{key}": value for name in parts.chain for key, value in parts.modules[name].named_parameters()}
