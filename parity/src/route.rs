//! Routers: checks that the engine sends every token to the reference's experts.
//!
//! Two experts with close scores can change places by rounding alone, and all later values then differ
//! although no op is wrong. Agreement is therefore reported separately. If the engine chooses differently
//! and rounding explains the margin of the scores, the flip is counted, and the run continues with the
//! reference's choice, so that later gates remain comparable. A choice that rounding does not explain is
//! kept, and fails.
//!
//! Choices are compared apart from their results ([decision 12](../../docs/decisions/0012-expert-choices-apart.md)).

use std::collections::{BTreeMap, BTreeSet};

use engine::Probe;
use engine::kernels::choose::TopK;
use registry::dtype::Dtype;
use registry::graph::{Graph, Node, ValueId};
use registry::ops::Trait;
use serde::Serialize;

use crate::dump::DumpTensor;

pub use crate::dump::RouterChoices;
use crate::gate::{Mode, Verdict};
use crate::rule;

/// Maximum number of flips that a report lists; the others are counted.
const LISTED: usize = 64;

/// Router of a graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Router {
    /// Module of its experts.
    pub module: String,
    /// Tap of its scores.
    scores: String,
    /// Tap of its choice.
    chosen: String,
    choice: TopK,
}

/// Returns every router of a graph whose experts have a name.
pub(crate) fn routers(graph: &Graph) -> Vec<Router> {
    let mut makers: BTreeMap<ValueId, &Node> = BTreeMap::new();
    for node in graph.nodes.iter().filter(|node| node.op.is(Trait::Chooses)) {
        makers.extend(node.outputs.iter().map(|value| (*value, node)));
    }
    let experts = graph.nodes.iter().filter(|node| node.op.is(Trait::Experts));
    experts.filter_map(|node| router_of(graph, &makers, node)).collect()
}

/// Returns the router of experts; `makers` are the nodes that choose, by their outputs.
fn router_of(graph: &Graph, makers: &BTreeMap<ValueId, &Node>, node: &Node) -> Option<Router> {
    let chosen = *node.inputs.get(1)?;
    let maker = makers.get(&chosen).copied();
    let choose = maker.or_else(|| graph.nodes.iter().find(|n| n.outputs.contains(&chosen)))?;
    Some(Router {
        module: tap_of(graph, *node.outputs.first()?)?,
        scores: tap_of(graph, *choose.inputs.first()?)?,
        chosen: tap_of(graph, chosen)?,
        choice: TopK::of_node(choose)?,
    })
}

/// Returns the tap of a value.
fn tap_of(graph: &Graph, value: ValueId) -> Option<String> {
    graph.values.get(value.0).and_then(|value| value.tap.clone())
}

/// Agreement of the routers in one run with the reference's.
#[derive(Debug, Clone, Serialize)]
pub struct RouterRow {
    /// Kind of inputs.
    pub mode: Mode,
    /// Number of choices compared: one per token and router.
    pub choices: usize,
    /// Number of equal choices.
    pub agree: usize,
    /// First flips, up to a limit.
    pub flips: Vec<RouterFlip>,
    /// Number of experts, and the experts reached, by router.
    #[serde(skip)]
    pub(crate) reached: BTreeMap<String, (usize, BTreeSet<usize>)>,
    /// Verdict; fails if rounding does not explain a flip.
    pub verdict: Verdict,
}

/// Token sent to other experts.
#[derive(Debug, Clone, Serialize)]
pub struct RouterFlip {
    /// Module of the experts.
    pub router: String,
    /// Prompt and phase.
    pub place: String,
    /// Row of the phase.
    pub row: usize,
    /// Smallest change of the scores that makes the reference's choice correct too, as a share of the
    /// spread of the scores.
    pub margin: f64,
    /// Margin that rounding explains.
    pub bound: f64,
}

impl RouterRow {
    pub(crate) fn new(mode: Mode) -> Self {
        let flips = Vec::new();
        let reached = BTreeMap::new();
        Self { mode, choices: 0, agree: 0, flips, reached, verdict: Verdict::Pass }
    }

    /// Returns the number of tokens that rounding does not explain at other experts.
    pub(crate) fn unexplained(&self) -> usize {
        let flips =
            self.flips.iter().filter(|flip| flip.margin.is_nan() || flip.margin > flip.bound);
        flips.map(|flip| (&flip.place, flip.row)).collect::<BTreeSet<_>>().len()
    }

    /// Returns the flip with the widest margin.
    pub fn widest(&self) -> Option<&RouterFlip> {
        self.flips.iter().max_by(|a, b| a.margin.total_cmp(&b.margin))
    }
}

/// Compares the choices of a run with the reference's while the run proceeds.
pub(crate) struct RoutingProbe<'a> {
    routers: &'a [Router],
    dtype: Dtype,
    place: String,
    row: &'a mut RouterRow,
    /// Scores of the current step, by tap.
    scores: BTreeMap<String, Vec<f32>>,
}

impl<'a> RoutingProbe<'a> {
    /// Returns the state at the beginning of a run.
    pub(crate) fn new(
        routers: &'a [Router],
        dtype: Dtype,
        place: String,
        row: &'a mut RouterRow,
    ) -> Self {
        Self { routers, dtype, place, row, scores: BTreeMap::new() }
    }

    pub(crate) fn wants(&self, tap: &str) -> bool {
        self.routers.iter().any(|router| router.scores == tap || router.chosen == tap)
    }

    /// Observes a value, and replaces a choice that differs from the reference's by rounding. The first row
    /// is row `first` of the phase.
    pub(crate) fn observe(
        &mut self,
        tap: &str,
        data: &mut [f32],
        first: usize,
        choices: &RouterChoices,
    ) {
        for router in self.routers {
            if router.scores == tap {
                self.scores.insert(router.module.clone(), data.to_vec());
            }
            let Some(theirs) = choices.get(&router.module).filter(|_| router.chosen == tap) else {
                continue;
            };
            let k = router.choice.k;
            let Some(scores) = self.scores.get(&router.module) else { continue };
            let rows = data.len() / k.max(1);
            let width = scores.len() / rows.max(1);
            if theirs.shape.get(1) != Some(&k) || width == 0 {
                continue;
            }
            let from = first.saturating_mul(k);
            let Some(theirs) = theirs.data.get(from..from.saturating_add(data.len())) else {
                continue;
            };
            let (all, reached) =
                self.row.reached.entry(router.module.clone()).or_insert((width, BTreeSet::new()));
            *all = width;
            reached
                .extend(theirs.iter().filter(|place| **place >= 0.0).map(|place| *place as usize));
            for (n, (ours, theirs)) in data.chunks_mut(k).zip(theirs.chunks(k)).enumerate() {
                let scores = &scores[n * width..(n + 1) * width];
                self.row.choices += 1;
                if same(ours, theirs) {
                    self.row.agree += 1;
                    continue;
                }
                let margin = share(&router.choice, scores, theirs);
                let bound = rule::choice(self.dtype, self.row.mode);
                if margin <= bound {
                    ours.copy_from_slice(theirs);
                } else {
                    self.row.verdict = Verdict::Fail;
                }
                if self.row.flips.len() < LISTED || margin > bound {
                    let router = router.module.clone();
                    let place = self.place.clone();
                    self.row.flips.push(RouterFlip {
                        router,
                        place,
                        row: first + n,
                        margin,
                        bound,
                    });
                }
            }
        }
    }
}

/// True if two choices are the same, in any order.
fn same(ours: &[f32], theirs: &[f32]) -> bool {
    ours.iter().all(|place| theirs.contains(place)) && theirs.iter().all(|p| ours.contains(p))
}

/// Returns the margin of another choice as a share of the spread of the scores. A correction that shifts
/// all scores does not reduce it. If all scores are alike, an eighth of the largest is used, which
/// determines the rounding.
fn share(choice: &TopK, scores: &[f32], theirs: &[f32]) -> f64 {
    let places: Vec<usize> =
        theirs.iter().map(|p| if *p >= 0.0 { *p as usize } else { usize::MAX }).collect();
    if scores.iter().any(|score| score.is_nan()) {
        return f64::INFINITY; // no choice follows from these
    }
    let mut least = f64::INFINITY;
    let mut highest = f64::NEG_INFINITY;
    let mut largest = 0.0_f64;
    for score in scores.iter().filter(|score| score.is_finite()).map(|score| f64::from(*score)) {
        (least, highest, largest) =
            (least.min(score), highest.max(score), largest.max(score.abs()));
    }
    let size = (highest - least).max(largest / 8.0).max(f64::from(f32::MIN_POSITIVE));
    f64::from(choice.margin(scores, &places)) / size
}

/// Records the choices of routers.
pub(crate) struct ChoiceRecorder<'a> {
    pub(crate) routers: &'a [Router],
    pub(crate) choices: RouterChoices,
}

impl Probe for ChoiceRecorder<'_> {
    fn wants(&self, tap: &str) -> bool {
        self.routers.iter().any(|router| router.chosen == tap)
    }

    fn tap(&mut self, tap: &str, shape: &[usize], data: &mut [f32]) {
        for router in self.routers.iter().filter(|router| router.chosen == tap) {
            let tensor =
                DumpTensor { dtype: Dtype::F32, shape: shape.to_vec(), data: data.to_vec() };
            self.choices.insert(router.module.clone(), tensor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_within_rounding_give_way_and_others_fail() {
        let router = Router {
            module: "e".into(),
            scores: "e:scores".into(),
            chosen: "e:chosen".into(),
            choice: TopK { k: 1, groups: None },
        };
        let theirs = DumpTensor { dtype: Dtype::F32, shape: vec![3, 1], data: vec![1.0, 1.0, 0.0] };
        let choices = RouterChoices::from([("e".to_owned(), theirs)]);
        let mut row = RouterRow::new(Mode::Local);
        let routers = [router];
        let mut steer = RoutingProbe::new(&routers, Dtype::F32, "main prefill".into(), &mut row);
        assert!(steer.wants("e:scores") && steer.wants("e:chosen") && !steer.wants("e"));
        let mut scores = [1.0, 0.999_999_8, 1.0, 0.5, 1.0, 0.5];
        steer.observe("e:scores", &mut scores, 0, &choices);
        let mut chosen = [0.0, 0.0, 0.0];
        steer.observe("e:chosen", &mut chosen, 0, &choices);
        assert_eq!(chosen, [1.0, 0.0, 0.0]);
        assert_eq!((row.choices, row.agree, row.flips.len()), (3, 1, 2));
        assert_eq!(row.verdict, Verdict::Fail);
    }

    #[test]
    fn a_shift_of_all_scores_makes_no_choice_closer() {
        let choice = TopK { k: 1, groups: None };
        let plain = share(&choice, &[0.5, 0.25, 0.0], &[1.0]);
        assert_eq!(plain, 0.5);
        assert_eq!(share(&choice, &[2.5, 2.25, 2.0], &[1.0]), plain);
        assert_eq!(share(&choice, &[32.5, 32.25, 32.0], &[1.0]), 0.25 / (32.5 / 8.0));
    }
}
