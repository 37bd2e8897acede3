"""Clients that send something else than what they made."""

from dataclasses import replace

from partwise.engines.engine import Engine


def attacking(monkeypatch, attackers, attack):
    """Some clients' uploads are changed on their way, whichever engine carries them out."""
    run = Engine.run

    def attacked(self, request):
        updates = run(self, request)
        rows = [row for row, client in enumerate(updates.clients) if client in attackers and request.job == "train"]
        return attack(updates, request, rows) if rows else updates

    monkeypatch.setattr(Engine, "run", attacked)


def ten_times_backwards(updates, request, rows):
    parts = {}
    for name, value in updates.parts.items():
        received = request.copies[name].of(updates.clients)
        parts[name] = value.clone()
        parts[name][rows] = received[rows] - 10 * (value[rows] - received[rows])
    return replace(updates, parts=parts)
