//! Values that layers hand on besides their rows.

use crate::graph::Id;
use crate::read::{Forward, Reader};

/// A value that later layers read.
#[derive(Debug, Clone)]
pub(crate) struct Carried {
    /// Its name in programs.
    pub(crate) name: String,
    /// Its term in each layer that makes it.
    pub(crate) made: Vec<Option<Id>>,
    /// Its term before the first layer, if the model makes it.
    pub(crate) initial: Option<Id>,
    /// The term that each layer reads.
    pub(crate) read: Vec<Option<Id>>,
}

impl Carried {
    /// Is true if a value that one layer makes and a later one reads can have this name: neither takes the place of another that is read later.
    fn lasts(&self, reader: &Reader<'_>, list: &str, maker: usize, read: usize) -> bool {
        let between = (maker + 1..read).any(|layer| self.made[layer].is_some());
        !between && !self.overwritten(reader, list, maker)
    }

    /// Is true if a value that a layer makes takes the place of an earlier one that a later layer reads.
    fn overwritten(&self, reader: &Reader<'_>, list: &str, layer: usize) -> bool {
        self.read.iter().enumerate().any(|(reading, id)| {
            let source = id.and_then(|id| split_owner(list, &reader.graph.term(id).owner));
            source.is_some_and(|(source, _)| source < layer && layer < reading)
        })
    }
}

/// Rows of a layer, which its program calls `x`, and what the layer gives.
pub(crate) type Stream = (Id, Id);

/// Streams of which each begins with the rows that the layer before gave, and the steps of the model between them; the number of a layer that begins with others.
pub(crate) fn linked(
    reader: &Reader<'_>,
    streams: &[Stream],
) -> Result<(Vec<Stream>, Vec<Id>), usize> {
    let mut result = streams.to_vec();
    let mut between = Vec::new();
    for number in 1..streams.len() {
        let given = streams[number - 1].1;
        let mut id = streams[number].0;
        while id != given {
            let [input] = reader.graph.term(id).inputs[..] else { return Err(number) };
            between.push(id);
            id = input;
        }
        result[number].0 = given;
    }
    Ok((result, between))
}

/// True for each term that depends on the tokens' embeddings.
pub(crate) fn varying(reader: &Reader<'_>) -> Vec<bool> {
    let mut varies: Vec<bool> = Vec::with_capacity(reader.graph.terms.len());
    for term in &reader.graph.terms {
        varies.push(term.op == "embed" || term.inputs.iter().any(|&input| varies[input]));
    }
    varies
}

/// Finds the values that layers read of earlier layers, or of the model around them.
pub(crate) fn find(
    reader: &Reader<'_>,
    layers: &[&Forward],
    streams: &[Stream],
    cache: &[Vec<i64>],
    between: &[Id],
) -> Vec<Carried> {
    let varies = varying(reader);
    let list = layers[0].path.rsplit_once('.').map_or("", |(list, _)| list);
    let mut carried: Vec<(Role, Carried)> = Vec::new();
    for (number, &(input, output)) in streams.iter().enumerate() {
        for id in outside(reader, list, number, (input, output), &varies, &cache[number], between) {
            let role = Role::of(reader, list, id);
            let source = role.layer_of(reader, list, id);
            let fits = |(known, entry): &(Role, Carried)| {
                *known == role
                    && source.is_none_or(|source| entry.lasts(reader, list, source, number))
            };
            let place = carried.iter().position(fits).unwrap_or_else(|| {
                let name = fresh_name(&carried, &role);
                let none = vec![None; layers.len()];
                carried.push((
                    role.clone(),
                    Carried { name, made: none.clone(), initial: None, read: none },
                ));
                carried.len() - 1
            });
            let entry = &mut carried[place].1;
            entry.read[number] = Some(id);
            match source {
                Some(layer) => entry.made[layer] = Some(id),
                None => entry.initial = Some(id),
            }
        }
    }
    for (role, entry) in &mut carried {
        role.complete(reader, list, entry);
    }
    let mut carried: Vec<Carried> = carried.into_iter().map(|(_, entry)| entry).collect();
    fill(&mut carried, streams[0].0);
    carried
}

/// Place of a value among the steps of a layer, or its term if the model makes it.
#[derive(Debug, Clone, PartialEq)]
enum Role {
    Layer { owner: String, op: String },
    Model(Id),
}

impl Role {
    fn of(reader: &Reader<'_>, list: &str, id: Id) -> Self {
        let term = reader.graph.term(id);
        match split_owner(list, &term.owner) {
            Some((_, owner)) => Self::Layer { owner: owner.to_owned(), op: term.op.clone() },
            None => Self::Model(id),
        }
    }

    fn layer_of(&self, reader: &Reader<'_>, list: &str, id: Id) -> Option<usize> {
        match self {
            Self::Layer { .. } => {
                split_owner(list, &reader.graph.term(id).owner).map(|(layer, _)| layer)
            }
            Self::Model(_) => None,
        }
    }

    /// Finds the value in all layers that have such a step once, if several make it.
    fn complete(&self, reader: &Reader<'_>, list: &str, entry: &mut Carried) {
        let Self::Layer { owner, op } = self else { return };
        if entry.made.iter().flatten().count() < 2 {
            return;
        }
        for layer in 0..entry.made.len() {
            let path = if owner.is_empty() {
                format!("{list}.{layer}")
            } else {
                format!("{list}.{layer}.{owner}")
            };
            let mut steps = (0..reader.graph.terms.len()).filter(|&id| {
                reader.graph.term(id).owner == path && reader.graph.term(id).op == *op
            });
            if let (None, Some(id), None) = (entry.made[layer], steps.next(), steps.next())
                && !entry.overwritten(reader, list, layer)
            {
                entry.made[layer] = Some(id);
            }
        }
    }
}

/// Number of the layer whose module this is, and the module below it.
fn split_owner<'o>(list: &str, owner: &'o str) -> Option<(usize, &'o str)> {
    let tail = owner.strip_prefix(list)?.strip_prefix('.')?;
    let (layer, below) = tail.split_once('.').unwrap_or((tail, ""));
    Some((layer.parse().ok()?, below))
}

fn fresh_name(carried: &[(Role, Carried)], role: &Role) -> String {
    let stem = match role {
        Role::Layer { owner, .. } => {
            let leaf = owner.rsplit('.').next().unwrap_or_default().trim_end_matches("_proj");
            if leaf.is_empty() { "handed".to_owned() } else { format!("handed_{leaf}") }
        }
        Role::Model(_) => "base".to_owned(),
    };
    let mut name = stem.clone();
    let mut number = 2;
    while carried.iter().any(|(_, other)| other.name == name) {
        name = format!("{stem}_{number}");
        number += 1;
    }
    name
}

/// Terms that a layer reads and does not make: first those of other layers, then those of the model.
fn outside(
    reader: &Reader<'_>,
    list: &str,
    number: usize,
    (input, output): Stream,
    varies: &[bool],
    cache: &[i64],
    between: &[Id],
) -> Vec<Id> {
    let mut open = vec![output];
    let mut visited: Vec<Id> = Vec::new();
    let mut found = Vec::new();
    while let Some(id) = open.pop() {
        if id == input || !varies[id] || visited.contains(&id) {
            continue;
        }
        visited.push(id);
        let term = reader.graph.term(id);
        let is_other = split_owner(list, &term.owner).is_none_or(|(layer, _)| layer != number);
        if is_other && !between.contains(&id) {
            found.push(id);
            continue;
        }
        let inputs =
            if crate::roll::borrows(term, cache) { &term.inputs[..1] } else { &term.inputs[..] };
        open.extend(inputs);
    }
    found.sort_unstable();
    found
}

/// Gives values that a layer hands on before any makes them the first rows in their place, which nothing reads.
fn fill(carried: &mut [Carried], rows: Id) {
    let layers = carried.first().map_or(0, |value| value.made.len());
    let first = (0..layers).find(|&layer| carried.iter().any(|value| value.made[layer].is_some()));
    for value in carried.iter_mut() {
        let late = first.is_some_and(|layer| value.made[layer].is_none());
        if late && value.initial.is_none() {
            value.initial = Some(rows);
        }
    }
}
