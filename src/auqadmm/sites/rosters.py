"""With which sites a data set was fitted before: sums over two rosters differ by the sites that are in one of them.

    A+B+C and A+B       differ by C alone
    A+B+C and A+B+D     differ by C−D, and a third roster (A+C+D and B) takes those two apart

So a masked plan that shares columns with an earlier one has the same sites, or differs from it by at least as many as
must take part in a sum. A site sees the plans that it is part of; it cannot exclude combinations of others.
"""

from __future__ import annotations

import json
from pathlib import Path

from auqadmm.sites.policy import Plan, Policy, PolicyError


def check_roster(policy: Policy, path: Path, plan: Plan) -> None:
    """Refuse sites that are nearly those of an earlier plan."""
    if plan.masked and policy.rosters == "same":
        for sites, columns in _known(path).get(plan.data, []):
            _check(policy, plan, set(sites), set(columns))


def remember(path: Path, plan: Plan) -> None:
    """Write the sites of a plan to a file of the site's: once something may leave, not where another site refused."""
    known = _known(path)
    before = known.setdefault(plan.data, [])
    own = [sorted(plan.sites), sorted(plan.used)]
    if own in before:
        return
    before.append(own)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.new")  # a site that is killed while it writes finds the old one
    part.write_text(json.dumps(known))
    part.replace(path)


def _known(path: Path) -> dict[str, list[list[list[str]]]]:
    return json.loads(path.read_text()) if path.exists() else {}


def _check(policy: Policy, plan: Plan, sites: set[str], columns: set[str]) -> None:
    odd = sites ^ set(plan.sites)
    if not 0 < len(odd) < max(policy.min_sites, 2) or not plan.used & columns:
        return
    alone = f"{odd.pop()} alone" if len(odd) == 1 else f"{' and '.join(sorted(odd))} without the others"
    raise PolicyError(
        f"columns of this plan were used before with {', '.join(sorted(sites))}, and the difference of the sums would "
        f'show {alone}; fit with the same sites as then, or ask the owner of this site to set rosters = "any" in its '
        "policy"
    )
