"""The claims of nodes as they join: the clients they host, and the fewest silos behind a mean.

A key is one client, named by the key. A node hosts several only where the operator of the server says so.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping

from partwise.errors import ConfigError, DataError, short
from partwise.federation.protocol.handshake import MOST_SAMPLES, all_within
from partwise.records.messages import Joined

log = logging.getLogger(__name__)


def admitted(joined: Mapping[str, Joined], may_host: Mapping[str, int]) -> dict[str, Joined]:
    """Return the replies of nodes whose claims hold; log and drop the others, if enough silos remain.

    `may_host` is the number of clients that a node may host, for nodes that may host others than their own key's.
    """
    false = false_claims(joined, may_host)
    left = {node: own for node, own in joined.items() if node not in false}
    if false and len(left) < fewest_silos(left):
        raise ConfigError(*(f"{node} {why}" for node, why in false.items()))
    for node, why in false.items():
        log.warning("%s %s; the run begins without it", node, why)
    return left


def false_claims(joined: Mapping[str, Joined], may_host: Mapping[str, int]) -> dict[str, str]:
    """Return by node what is false in its claims to host clients."""
    claimed = {node: own.names for node, own in joined.items()}
    times = Counter(name for names in claimed.values() for name in names)
    result = {}
    for node, names in claimed.items():
        if not names:  # `agree` says what is wrong with such a description
            continue
        others = [name for name in names if name in joined and name != node]
        twice = [name for name in names if times[name] > 1 and name != node]
        if others:
            result[node] = f"claims to be '{short(others[0])}', the name of another silo"
        elif node not in may_host and names != [node]:
            what = f"'{short(names[0])}'" if len(names) == 1 else f"{len(names)} clients"
            result[node] = (
                f"claims to be {what}, but a key is one client, named by the key: '{node}' must be the name in the "
                f"silo's file; --hosts {node}=N lets it host N clients"
            )
        elif len(names) > may_host.get(node, 1):
            result[node] = f"claims {len(names)} clients, and --hosts {node}={may_host[node]} lets it host fewer"
        elif twice:
            result[node] = f"claims the client '{short(twice[0])}', which is claimed twice"
    return result


def fewest_silos(joined: Mapping[str, Joined]) -> int:
    """Return the number of silos that must be behind every mean: the largest that one of them demands."""
    for node, own in joined.items():
        if not all_within(1, MOST_SAMPLES, own.min_clients):
            raise DataError(f"{node}: min_clients = {own.min_clients}")
    return max((own.min_clients for own in joined.values()), default=1)


def check_participants(joined: Mapping[str, Joined], participants: int) -> None:
    """Refuse a run whose rounds have fewer silos than one of them wants behind every mean."""
    most = min(participants, len(joined))
    for node, own in joined.items():
        if own.min_clients > most:
            raise ConfigError(
                f"{node} wants {own.min_clients} silos behind every mean, and a round of this run has {most} at "
                "most; more silos or a larger participation mend it, or a smaller min_clients in the silo's [allow]"
            )


def parse_hosts(given: Iterable[str]) -> dict[str, int]:
    """Return the number of clients that nodes may host, of `NAME=N`."""
    result = {}
    for each in given:
        name, _, number = each.rpartition("=")
        if not name or not number.isdecimal() or int(number) < 1:
            raise ConfigError(f"--hosts {each}: NAME=N is needed, such as left=1000")
        result[name] = int(number)
    return result
