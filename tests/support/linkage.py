"""Agglomerative clustering written out: every distance between two clusters is computed from their members anew."""

import itertools


def merges(distances):
    """Clusters after every merge of average linkage, from all alone to all in one, and the height of each merge."""
    clusters, states, heights = [[k] for k in range(len(distances))], [], []
    states.append(clusters)
    while len(clusters) > 1:
        apart = {
            (a, b): sum(float(distances[i][j]) for i in clusters[a] for j in clusters[b])
            / (len(clusters[a]) * len(clusters[b]))
            for a, b in itertools.combinations(range(len(clusters)), 2)
        }
        a, b = min(apart, key=apart.__getitem__)
        heights.append(apart[a, b])
        clusters = [own for at, own in enumerate(clusters) if at not in (a, b)] + [sorted(clusters[a] + clusters[b])]
        states.append(clusters)
    return states, heights


def clusters(distances, number=None, threshold=None):
    """Cut at a number of clusters, at a height, or (neither given) below the largest step between two heights."""
    states, heights = merges(distances)
    if number is None and threshold is not None:
        number = len(distances) - sum(height < threshold for height in heights)
    if number is None:
        steps = [above - below for below, above in itertools.pairwise(heights)]
        number = len(distances) - 1 - steps.index(max(steps))
    return sorted(sorted(own) for own in states[len(distances) - number])


def partition(groups):
    """Clients by group, without the groups' numbers."""
    groups = [int(group) for group in groups]
    return sorted([k for k, group in enumerate(groups) if group == number] for number in set(groups))
