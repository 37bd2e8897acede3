"""A method of a user's own: warm up together, then filters by group and a personal head, guided by class means."""

from partwise import ALL, EVERYONE, FROZEN, GROUP, LOCAL, ClassRows, Method, Stage, WithinGroups, option, train


class Clustered(Method):
    warmup: int = option(2, "Rounds before the groups part.", minimum=1)

    def build(self, parts, sizes):
        return parts.cut("body", filter=parts.layers("body")[-1]).like("head", name="p_head")

    def stages(self):
        apart = {"*": FROZEN, "filter": GROUP, "p_head": LOCAL}
        yield Stage(train("body filter head"), {"*": ALL, "p_head": LOCAL}, rounds=self.warmup, snapshot="global")
        yield Stage(train("filter p_head", "personal"), apart, rounds=self.rounds - self.warmup,
                    cohort=WithinGroups(self.halves), fresh="filter p_head")  # fmt: skip

    def personal(self, net, b, me):
        z = net.filter(net.body(b.x))
        return b.ce(net.p_head(z)) + 0.1 * b.mean((z - me.got.means.mean[b.y]).square().mean(1))

    def predict(self, net, x, me):
        return net.p_head(net.filter(net.body(x)))

    def report(self, net, b, me):
        return {"means": ClassRows.of(net.filter(net.body(b.x)), b)}

    def begin(self, server, run):
        server.memory["first class"] = run("report", EVERYONE).extras["means"].counts[:, 0]

    def aggregate(self, server, updates):
        server.memory["means"] = ClassRows(*(rows.sum(0) for rows in updates.extras["means"]))

    def down(self, server):
        return {"means": server.memory["means"]} if "means" in server.memory else {}

    def halves(self, server):
        return (server.memory["first class"] > server.memory["first class"].median()).long().tolist()
