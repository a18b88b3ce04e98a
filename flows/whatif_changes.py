"""What `coral whatif` is asked to change, read from its options and applied to a loaded scenario.

Every fault of every option is found before anything is solved. Models are matched whole, by letters and digits alone
(`phi4` is `phi-4`); GPUs through the alias table; node configurations and regions by patterns (`L4*`, `*`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from catalogs.demand import planned_rate
from catalogs.errors import CoralError, Finding, InputError, UnknownNameError, close_matches_remedy
from catalogs.ids import split_node_config
from catalogs.offers import by_price
from catalogs.scenario import LoadedScenario, ModelPlanDemand, offers_by_best
from catalogs.scenario_kv import kv_terms_of
from catalogs.scenario_schema import LEAST_DEMAND, LEAST_MS, MOST_DEMAND, MOST_TPOT_MS, MOST_TTFT_MS
from catalogs.types import Availability, Basis, Offer, Phase
from catalogs.wording import counted

_PERCENT = re.compile(r"^([+-]\d+(?:\.\d+)?)%$")
_PHASES = {"prefill": Phase.PREFILL, "ttft": Phase.PREFILL, "decode": Phase.DECODE, "tpot": Phase.DECODE}
_MOST_NODES = 100_000
_MOST_USD_PER_H = 1_000_000  # of a machine: beyond any real one, for what shall not be rented
_SCOPE = "skypilot"  # whose short GPU names are understood


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The options as given, each a list: ``MODEL=R``, ``MODEL.PHASE=MS``, ``CONFIG:REGION=USD``, ``GPU|CONFIG``, ``REGION``,
    ``REGION:CONFIG=NODES``, ``USD[,GBIT]`` or ``off``. R, MS and USD may be ``+N%`` or ``-N%``."""

    demand: tuple[str, ...] = ()
    slo: tuple[str, ...] = ()
    price: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    without_region: tuple[str, ...] = ()
    supply: tuple[str, ...] = ()
    cross_region_kv: tuple[str, ...] = ()


@dataclass(frozen=True)
class Changed:
    """``loaded``: the scenario with all changes. ``for_library``: with changed SLOs alone, which is what its library is made
    for. ``texts``: the changes in words; ``slo_changes``: those that need templates of their own; ``notes``: caveats."""

    loaded: LoadedScenario
    for_library: LoadedScenario
    texts: tuple[str, ...]
    slo_changes: tuple[str, ...]
    notes: tuple[str, ...]


def apply_changes(loaded: LoadedScenario, asked: WhatIf) -> Changed:
    """``loaded`` with everything that is asked for. Raises InputError with every fault, CoralError where nothing is asked."""
    if not any(getattr(asked, name) for name in WhatIf.__dataclass_fields__):
        raise CoralError(
            "no change is asked for",
            remedy="give --demand, --slo, --price, --without, --without-region, --supply or --cross-region-kv; see "
            "`coral whatif --help`",
        )
    state = _Changes(loaded)
    for option, apply in (
        ("slo", state.slo),
        ("demand", state.demand),
        ("without", state.without),
        ("without_region", state.without_region),
        ("price", state.price),
        ("supply", state.supply),
        ("cross_region_kv", state.cross_region_kv),
    ):
        for text in getattr(asked, option):
            state.option, state.text = f"--{option.replace('_', '-')}", text
            apply(text)
    state.check()
    if state.faults:
        raise InputError(state.faults)
    return Changed(state.now, state.for_library, tuple(state.texts), tuple(state.slo_changes), tuple(state.notes))


@dataclass
class _Changes:
    """The scenario as changed so far, and what was found wrong."""

    now: LoadedScenario
    for_library: LoadedScenario = field(init=False)
    option: str = ""
    text: str = ""
    texts: list[str] = field(default_factory=list)
    slo_changes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    faults: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.for_library = self.now

    def fault(self, reason: str, remedy: str) -> None:
        self.faults.append(Finding(self.option, 0, "", self.text, reason, remedy))

    # ---- one method per option --------------------------------------------------------------------------------------

    def demand(self, text: str) -> None:
        name, amount = self._pair(text, "MODEL=R, such as phi-4=12 or phi-4=+30%")
        if amount is None:
            return
        model = self._model(name)
        if model is None:
            return
        if model.stated_req_per_s is None and _PERCENT.match(amount):
            self.fault("the demand is unknown, so no per cent of it is known", "give requests per second")
            return
        stated = self._amount(amount, model.stated_req_per_s or 0.0, "requests per second, or +N% or -N%")
        if stated is None:
            return
        if not self._is_within(stated, LEAST_DEMAND, MOST_DEMAND, or_zero=True):
            return
        planned = planned_rate(stated, self.now.scenario.policy.demand_percentile)
        before = "unknown" if model.stated_req_per_s is None else f"{model.stated_req_per_s:g}"
        self.texts.append(f"demand of {model.alias} {before} -> {stated:g} req/s")
        self._set_demand(replace(model, stated_req_per_s=stated, planned_req_per_s=planned, basis=Basis.STATED))

    def slo(self, text: str) -> None:
        form = "MODEL.PHASE=MS, such as phi-4.decode=50 or phi-4.prefill=-20%"
        name, amount = self._pair(text, form)
        if amount is None:
            return
        name, _, phase_name = name.rpartition(".")
        phase = _PHASES.get(phase_name.lower())
        if phase is None:
            self.fault("names no phase", f"write {form}")
            return
        model = self._model(name)
        if model is None:
            return
        old = next(w for w in self.now.workloads if w.workload_id in model.workload_ids and w.phase is phase)
        slo_ms = self._amount(amount, old.slo_ms, "milliseconds, or +N% or -N%")
        if slo_ms is None:
            return
        if not self._is_within(slo_ms, LEAST_MS, MOST_TTFT_MS if phase is Phase.PREFILL else MOST_TPOT_MS):
            return
        new = replace(old, slo_ms=slo_ms)
        word = "TTFT" if phase is Phase.PREFILL else "TPOT"
        self.texts.append(f"{word} of {model.alias} {old.slo_ms:g} -> {slo_ms:g} ms")
        if new.workload_id == old.workload_id:
            return
        self.slo_changes.append(f"{model.alias}.{phase.value}={slo_ms:g}")

        def renamed(loaded: LoadedScenario) -> LoadedScenario:
            workloads = tuple(new if w.workload_id == old.workload_id else w for w in loaded.workloads)
            demands = tuple(
                replace(d, workload_ids=tuple(new.workload_id if i == old.workload_id else i for i in d.workload_ids))
                for d in loaded.model_demands
            )
            return replace(loaded, workloads=workloads, model_demands=demands)

        self.now, self.for_library = renamed(self.now), renamed(self.for_library)

    def without(self, text: str) -> None:
        try:
            gpu, count = split_node_config(text)
            name = f"{self.now.catalog.gpu_names.encode(gpu, scope=_SCOPE)}x{count}"
        except (ValueError, UnknownNameError):
            try:
                name = self.now.catalog.gpu_names.encode(text, scope=_SCOPE)
            except UnknownNameError:
                known = {offer.node_config for offer in self.now.offers} | set(self.now.catalog.gpus)
                self.fault("unknown GPU or node configuration", close_matches_remedy(text, known))
                return
            except CoralError as error:
                self.fault(error.message, error.remedy)
                return
        kept = [o for o in self.now.offers if name not in (o.node_config, split_node_config(o.node_config)[0])]
        self.texts.append(f"without {name}")
        if len(kept) == len(self.now.offers):
            self.notes.append(f"{name} is not on offer in {self.now.scenario.id}: being without it changes nothing")
        self._set_offers(kept)

    def without_region(self, text: str) -> None:
        found = [region for region in self.now.regions if text.lower() in (region, region.split("/")[-1])]
        if not found:
            names = (*self.now.regions, *(region.split("/")[-1] for region in self.now.regions))
            self.fault("unknown region", close_matches_remedy(text, names))
            return
        self.texts.append(f"without {', '.join(found)}")
        self._set_offers([offer for offer in self.now.offers if offer.region not in found])
        for demand in self.now.model_demands:
            left = tuple(region for region in demand.regions if region not in found)
            if not left:
                self.fault(f"{demand.alias} may be served nowhere else", "allow it another region")
            elif len(left) < demand.min_regions:
                self.fault(
                    f"{demand.alias} is to be served from {demand.min_regions} regions, {len(left)} left",
                    "lower its min_regions, or allow it another region",
                )
            self._set_demand(replace(demand, regions=left))

    def price(self, text: str) -> None:
        name, amount = self._pair(text, "CONFIG:REGION=USD, such as 'L4:*=+10%' or L4x1:us-east-2=0.7")
        if amount is None:
            return
        config, _, region = name.partition(":")
        chosen = self._offers(config, region or "*")
        if not chosen:
            return
        changed = {}
        for offer in chosen:
            usd = self._amount(amount, offer.price_usd_per_h, "USD per hour, or +N% or -N%")
            if usd is None or not self._is_within(usd, 0.0, _MOST_USD_PER_H):
                return
            changed[offer.offer_id] = replace(offer, price_usd_per_h=usd)
        self.texts.append(f"price of {_few(f'{o.node_config} in {o.region}' for o in chosen)} {_shown(amount)}")
        self._set_offers([changed.get(offer.offer_id, offer) for offer in self.now.offers])

    def supply(self, text: str) -> None:
        name, amount = self._pair(text, "REGION:CONFIG=NODES, such as us-east-2:L4x1=0")
        if amount is None:
            return
        region, _, config = name.rpartition(":")
        if not amount.isdecimal() or int(amount) > _MOST_NODES:
            self.fault("is no number of nodes", f"give a whole number from 0 to {_MOST_NODES}")
            return
        chosen = self._offers(config, region or "*")
        feed = dict(self.now.supply.feed)
        for offer in chosen:
            key = (offer.region, offer.node_config, offer.market)
            feed[key] = Availability(*key, "", int(amount), Basis.FEED)
        self.now = replace(self.now, supply=replace(self.now.supply, feed=feed))
        if chosen:
            self.texts.append(
                f"{counted(int(amount), 'node')} of {_few(f'{o.node_config} in {o.region}' for o in chosen)}"
            )
        for offer in chosen:
            nodes = self.now.supply.nodes(offer.region, offer.node_config, offer.market)[0]
            if nodes < int(amount):
                self.notes.append(f"a quota allows {nodes} {offer.node_config} in {offer.region}")

    def cross_region_kv(self, text: str) -> None:
        try:
            section = None if text == "off" else kv_terms_of(text)
        except CoralError as error:
            self.fault("is no price", error.remedy)
            return
        policy = self.now.scenario.policy.model_copy(update={"cross_region_kv": section})
        self.now = replace(self.now, scenario=self.now.scenario.model_copy(update={"policy": policy}))
        if section is None:
            self.texts.append("KV stays in its region")
        else:
            most = "" if section.gbit_per_s is None else f", {section.gbit_per_s:g} Gbit/s at most from one to another"
            self.texts.append(f"KV may cross regions at {section.usd_per_gb:g} USD/GB{most}")

    # ---- what they share ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Every model must be left somewhere to rent."""
        if not self.now.offers:
            self.option, self.text = "--without", ""
            self.fault("nothing is left to rent", "leave some GPU and region")

    def _pair(self, text: str, form: str) -> tuple[str, str | None]:
        name, sign, amount = text.rpartition("=")
        if not sign or not name.strip() or not amount.strip():
            self.fault("is not of the form asked for", f"write {form}")
            return "", None
        return name.strip(), amount.strip()

    def _amount(self, text: str, base: float, form: str) -> float | None:
        percent = _PERCENT.match(text)
        try:
            value = base * (1 + float(percent[1]) / 100) if percent else float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < 0:
            self.fault("is no amount of 0 or more", f"give {form}")
            return None
        return round(value, 9)

    def _is_within(self, value: float, low: float, high: float, *, or_zero: bool = False) -> bool:
        """Whether a scenario takes the value too; a fault where not."""
        if low <= value <= high or (or_zero and value == 0):
            return True
        self.fault(f"makes {value:g}, which is out of range", f"give {'0 or ' * or_zero}from {low:g} to {high:.12g}")
        return False

    def _model(self, name: str) -> ModelPlanDemand | None:
        found = [d for d in self.now.model_demands if _letters(name) in map(_letters, _names(d))]
        if len(found) == 1:
            return found[0]
        bare, _, phase = name.rpartition(".")
        if phase.lower() in _PHASES and any(_letters(bare) in map(_letters, _names(d)) for d in self.now.model_demands):
            self.fault("names a phase, and a model's requests go through both", f"write {bare}=...")
        else:
            known = [demand.model if "/" in name else demand.alias for demand in self.now.model_demands]
            self.fault("unknown model in this scenario", close_matches_remedy(name, known))
        return None

    def _offers(self, config: str, region: str) -> list[Offer]:
        """Offers of a configuration (a pattern, or a GPU) in a region (a pattern, with or without its provider)."""
        here = [
            o
            for o in self.now.offers
            if any(fnmatchcase(part.lower(), region.lower()) for part in (o.region, o.region.split("/")[-1]))
        ]
        if not here:
            known = (*self.now.regions, *(name.split("/")[-1] for name in self.now.regions))
            self.fault(f"no region {region!r}", close_matches_remedy(region, known))
            return []
        try:
            gpu = self.now.catalog.gpu_names.encode(config, scope=_SCOPE)
        except CoralError:
            gpu = ""
        found = [
            o
            for o in here
            if split_node_config(o.node_config)[0] == gpu or fnmatchcase(o.node_config.lower(), config.lower())
        ]
        if not found:
            known = (*{offer.node_config for offer in here}, *self._gpus())
            self.fault(f"nothing called {config!r} is on offer there", close_matches_remedy(config, known))
        return found

    def _gpus(self) -> set[str]:
        return {split_node_config(offer.node_config)[0] for offer in self.now.offers}

    def _set_offers(self, offers: Iterable[Offer]) -> None:
        kept = by_price(offers)
        self.now = replace(self.now, offers=kept, best=offers_by_best(kept))

    def _set_demand(self, demand: ModelPlanDemand) -> None:
        demands = tuple(demand if d.model == demand.model else d for d in self.now.model_demands)
        self.now = replace(self.now, model_demands=demands)


def _names(demand: ModelPlanDemand) -> tuple[str, str, str]:
    return demand.alias, demand.model, demand.model.rsplit("/", 1)[-1]


def _letters(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def _shown(amount: str) -> str:
    return amount if _PERCENT.match(amount) else f"-> {float(amount):g} USD/h"


def _few(names: Iterable[str], most: int = 3) -> str:
    unique: Sequence[str] = list(dict.fromkeys(names))
    return ", ".join(unique[:most]) + (f" and {len(unique) - most} more" if len(unique) > most else "")
