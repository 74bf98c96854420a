//! Modules of the written code: the classes of layers, and what layers take from elsewhere.

use indexmap::{IndexMap, IndexSet};
use registry::syntax::Expr;

use crate::scalars::LayerSymbols;
use crate::value::ModuleUse;

/// The word of sheets for a state that has a place among others.
const SLOT: &str = "slot";

/// The mark of a state in the code that makes a module which keeps several.
pub(crate) const STATE: &str = "«S:";

/// One class of layers.
#[derive(Debug, Clone, Default)]
pub(crate) struct LayerClass {
    /// The kinds of layers that it is for; `*` is all that no other class is for.
    pub(crate) kinds: Vec<String>,
    /// The method that runs it.
    pub(crate) method: usize,
    /// Its scalars.
    pub(crate) scalars: LayerSymbols,
    /// Caches of its states.
    pub(crate) kept: KeptStates,
}

/// Caches of the states of one class of layers.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct KeptStates {
    /// Code that makes each of those that have a cache of their own.
    pub(crate) made: Vec<String>,
    /// The number of the others, which share one.
    pub(crate) slots: usize,
    /// The place of each state, by name.
    pub(crate) places: IndexMap<String, String>,
}

impl KeptStates {
    pub(crate) fn new(kept: IndexMap<String, String>) -> Self {
        let mut states = Self::default();
        let alone = kept.values().filter(|keeps| *keeps != SLOT).count();
        let slots = kept.len() - alone;
        let single = alone + usize::from(slots > 0) == 1;
        let place = |n: usize| if single { String::new() } else { format!("[{n}]") };
        for (name, keeps) in kept {
            let part = if keeps == SLOT {
                states.slots += 1;
                format!("{}, {}", place(alone), states.slots - 1)
            } else {
                states.made.push(keeps);
                place(states.made.len() - 1)
            };
            states.places.insert(name, part);
        }
        states
    }
}

/// All classes of layers, and what they need.
#[derive(Debug, Clone, Default)]
pub(crate) struct LayerClasses {
    /// The path of the list of layers.
    pub(crate) list: String,
    /// The scalar that numbers modules, if layers share them.
    pub(crate) place: Option<String>,
    /// The scalars of any layer.
    pub(crate) scalars: LayerSymbols,
    pub(crate) classes: Vec<LayerClass>,
    /// The expression of a layer's kind, over `E:i`.
    pub(crate) kind: Option<Expr>,
    /// The number of layers.
    pub(crate) count: Option<Expr>,
}

/// A module that layers take from elsewhere.
#[derive(Debug, Clone)]
pub(crate) struct LentModule {
    /// Its name in a layer.
    pub(crate) name: String,
    /// The list that it is in, or the layer that it is in.
    pub(crate) list: String,
    /// The number of the one that a layer takes.
    pub(crate) number: Expr,
    /// The expression of the layer that has it; none if it is in a list beside the layers.
    pub(crate) owner: Option<Expr>,
    /// The place among the classes of layers that take it.
    pub(crate) class: usize,
}

/// A list of modules in which scalars of the layer say which to use.
#[derive(Debug, Clone)]
pub(crate) struct ModuleChoice {
    /// The number of the one to use.
    pub(crate) number: Expr,
    /// The scalar of the layer that lists all numbers that its list has.
    pub(crate) all: String,
}

/// The constructor of a module from a list beside the layers.
#[derive(Debug, Clone)]
pub(crate) struct LentChild {
    pub(crate) name: String,
    pub(crate) made: String,
    /// The condition under which a layer takes one.
    pub(crate) condition: String,
}

/// Returns the number of a choice in a segment of a path.
pub(crate) fn choice_of(segment: &str) -> Option<usize> {
    segment.strip_prefix('{')?.strip_suffix('}')?.parse().ok()
}

/// Gives a module that keeps states those of all its uses.
pub(crate) fn join_states(uses: &mut [ModuleUse]) {
    let names: IndexSet<String> =
        uses.iter().filter_map(|one| Some(marked(&one.made)?.1.to_owned())).collect();
    let all = names.into_iter().collect::<Vec<_>>().join(", ");
    for one in uses {
        if let Some((before, _, behind)) = marked(&one.made) {
            one.made = [before, &all, behind].concat();
        }
    }
}

/// Divides a text at its mark of a state.
fn marked(text: &str) -> Option<(&str, &str, &str)> {
    let (before, behind) = text.split_once(STATE)?;
    let (name, behind) = behind.split_once('»')?;
    Some((before, name, behind))
}
