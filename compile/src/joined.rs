//! Products of one input with several matrices, which a target writes as one product with a joined matrix.
//!
//! The sheet says which constructor makes matrices that can be joined (`joinable`), and how the joined one is made.

use std::collections::BTreeSet;

use crate::classes::Class;
use crate::target::Target;
use crate::value::{CodeLine, each_text};
use crate::words::is_of_name;

/// A matrix that is joined from others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JoinedMatrix {
    pub(crate) name: String,
    /// Names of the matrices in a checkpoint, and what the loader of the joined one calls them.
    pub(crate) parts: Vec<(String, String)>,
}

impl JoinedMatrix {
    /// Returns what templates see.
    pub(crate) fn value(&self) -> minijinja::Value {
        let parts: Vec<Vec<String>> =
            self.parts.iter().map(|(part, shard)| vec![part.clone(), shard.clone()]).collect();
        minijinja::context! { name => self.name.clone(), parts }
    }
}

/// A matrix of a class.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Matrix {
    name: String,
    input: String,
    output: String,
    /// The other arguments, with a place for the name.
    options: String,
}

/// Matrices that a method multiplies with one variable.
struct JoinedProducts {
    method: usize,
    variable: String,
    matrices: Vec<Matrix>,
    /// The first and the last statement with such a product.
    first: usize,
    last: usize,
}

impl JoinedProducts {
    /// True if a further product is of the same variable, with a matrix that differs in its columns alone.
    fn takes(&self, variable: &str, matrix: &Matrix) -> bool {
        let like = &self.matrices[0];
        self.variable == variable && like.input == matrix.input && like.options == matrix.options
    }
}

/// Numbers of heads of queries and of keys, and the size of one.
struct HeadCounts {
    queries: String,
    keys: String,
    size: String,
}

/// Stands for the name of a matrix in its options.
const NAME: &str = "«name»";

/// Joins matrices in all classes, and returns those that are joined.
pub(crate) fn join(classes: &mut [Class], target: &Target) -> Vec<JoinedMatrix> {
    let mut joined: Vec<JoinedMatrix> = Vec::new();
    if !target.words.contains_key("joinable") {
        return joined;
    }
    let shared = names_of_other_classes(classes);
    for class in classes {
        while let Some(products) = products(class, target, &shared) {
            let one = replace(class, &products, target);
            if !joined.contains(&one) {
                joined.push(one);
            }
        }
    }
    joined
}

/// Returns the names that follow a longer path than `self`: modules of a class that another uses.
fn names_of_other_classes(classes: &[Class]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for class in classes {
        let bodies = class.methods.iter().map(|method| &method.body);
        for lines in bodies.chain([&class.init]) {
            each_text(lines, &mut |text| {
                for path in text.split(|c: char| !is_of_path(c)) {
                    names.extend(path.split('.').skip(2).map(str::to_owned));
                }
            });
        }
    }
    names.remove("weight");
    names.remove("bias");
    names
}

fn is_of_path(c: char) -> bool {
    is_of_name(c) || c == '.'
}

/// Returns the parts of a call's arguments, divided by commas outside of parentheses.
fn arguments(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut depth = 0_usize;
    for (place, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(text[start..place].trim());
                start = place + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts
}

/// Reads a statement of a constructor that makes a matrix.
fn matrix(line: &CodeLine, target: &Target) -> Option<Matrix> {
    let CodeLine::Text(text) = line else { return None };
    let (name, constructor) = text.strip_prefix("self.")?.split_once(" = ")?;
    let operands =
        constructor.strip_prefix(&target.word("joinable"))?.strip_prefix('(')?.strip_suffix(')')?;
    let [input, output, options @ ..] = &*arguments(operands) else { return None };
    let options = options.join(", ").replace(&format!("\"{name}\""), NAME);
    let name = name.chars().all(is_of_name).then(|| name.to_owned())?;
    Some(Matrix { name, input: (*input).to_owned(), output: (*output).to_owned(), options })
}

/// Counts a name as a whole in a text.
fn count(text: &str, name: &str) -> usize {
    text.match_indices(name)
        .filter(|(place, _)| {
            let before = text[..*place].chars().next_back();
            let after = text[place + name.len()..].chars().next();
            !before.is_some_and(is_of_path) && !after.is_some_and(is_of_name)
        })
        .count()
}

/// Counts a name in the methods of a class.
fn uses(class: &Class, name: &str) -> usize {
    let mut total = 0;
    for method in &class.methods {
        each_text(&method.body, &mut |text| total += count(text, name));
    }
    total
}

/// Finds matrices of a class that one method multiplies with one variable, which does not change in between.
fn products(class: &Class, target: &Target, shared: &BTreeSet<String>) -> Option<JoinedProducts> {
    let mut matrices: Vec<Matrix> =
        class.init.iter().filter_map(|line| matrix(line, target)).collect();
    matrices.retain(|one| {
        let is_free = uses(class, &one.name) == 0 && !shared.contains(&one.name);
        is_free && uses(class, &format!("self.{}", one.name)) == 1
    });
    for (number, method) in class.methods.iter().enumerate() {
        let mut groups = products_of(number, &method.body, &matrices);
        groups.retain(|group| {
            let between = &method.body[group.first..group.last];
            let assignment = format!("self.{} =", joined_name(&group.matrices));
            let is_taken =
                class.init.iter().any(|line| is_text(line, |text| text.starts_with(&assignment)));
            group.matrices.len() > 1 && !is_taken && !assigns(between, &group.variable)
        });
        if !groups.is_empty() {
            return groups.into_iter().next();
        }
    }
    None
}

/// Groups the products of a method by variable, and by what their matrices have in common.
fn products_of(method: usize, body: &[CodeLine], matrices: &[Matrix]) -> Vec<JoinedProducts> {
    let mut groups: Vec<JoinedProducts> = Vec::new();
    for (place, line) in body.iter().enumerate() {
        let CodeLine::Text(text) = line else { continue };
        let mut called: Vec<(usize, &str, &Matrix)> = Vec::new();
        for one in matrices {
            called.extend(product(text, one).map(|(at, variable)| (at, variable, one)));
        }
        called.sort_by_key(|(at, ..)| *at);
        for (_, variable, one) in called {
            if let Some(group) = groups.iter_mut().find(|group| group.takes(variable, one)) {
                group.matrices.push(one.clone());
                group.last = place;
                continue;
            }
            groups.push(JoinedProducts {
                method,
                variable: variable.to_owned(),
                matrices: vec![one.clone()],
                first: place,
                last: place,
            });
        }
    }
    groups
}

fn is_text(line: &CodeLine, holds: impl FnOnce(&str) -> bool) -> bool {
    matches!(line, CodeLine::Text(text) if holds(text))
}

/// Returns the place and the variable of a product with a matrix.
fn product<'t>(text: &'t str, matrix: &Matrix) -> Option<(usize, &'t str)> {
    let call = format!("self.{}(", matrix.name);
    let at = text.find(&call)?;
    let (variable, _) = text[at + call.len()..].split_once(')')?;
    (!variable.is_empty() && variable.chars().all(is_of_name)).then_some((at, variable))
}

/// True if some statement gives a variable a value.
fn assigns(lines: &[CodeLine], variable: &str) -> bool {
    let mut is_assigned = false;
    each_text(lines, &mut |text| {
        let names = text.split_once(" = ").map_or("", |(names, _)| names);
        is_assigned |= names.split(", ").any(|name| name == variable);
    });
    is_assigned
}

/// Names a joined matrix after its parts: `qkv_proj`, `gate_up_proj`, `w13`.
fn joined_name(parts: &[Matrix]) -> String {
    let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
    let stems: Option<Vec<(&str, &str)>> = names.iter().map(|name| name.rsplit_once('_')).collect();
    if let Some(stems) = stems.filter(|stems| stems.iter().all(|(_, end)| *end == stems[0].1)) {
        let between = if stems.iter().all(|(stem, _)| stem.len() == 1) { "" } else { "_" };
        let stems_alone: Vec<&str> = stems.iter().map(|(stem, _)| *stem).collect();
        return format!("{}_{}", stems_alone.join(between), stems[0].1);
    }
    let numbers: Option<Vec<&str>> = names.iter().map(|name| name.get(1..)).collect();
    let is_number = |text: &&str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    match numbers.filter(|numbers| numbers.iter().all(is_number)) {
        Some(numbers) if names.iter().all(|name| name[..1] == names[0][..1]) => {
            names[0][..1].to_owned() + &numbers.concat()
        }
        _ => names.join("_"),
    }
}

/// Returns the numbers of heads, if the three matrices are those of queries, keys and values.
fn head_counts(class: &Class, parts: &[Matrix], target: &Target) -> Option<HeadCounts> {
    let [query, key, value] = parts else { return None };
    let (queries, size) = query.output.rsplit_once(" * ")?;
    let (keys, key_size) = key.output.rsplit_once(" * ")?;
    let counts =
        HeadCounts { queries: queries.to_owned(), keys: keys.to_owned(), size: size.to_owned() };
    let divided = target.spelled("rank_heads", &[("n", queries)]);
    let first = class.init.iter().position(|line| matrix(line, target).as_ref() == Some(query))?;
    let attends = class.init[first..]
        .iter()
        .any(|line| matches!(line, CodeLine::Text(text) if text.contains(&divided)));
    (key.output == value.output && size == key_size && attends).then_some(counts)
}

/// Puts one joined matrix in place of several.
fn replace(class: &mut Class, products: &JoinedProducts, target: &Target) -> JoinedMatrix {
    let parts = &products.matrices;
    let name = joined_name(parts);
    let joined = format!("self.{name}");
    let counts = head_counts(class, parts, target);
    let outputs: Vec<&str> = parts.iter().map(|part| part.output.as_str()).collect();
    let options = parts[0].options.replace(NAME, &format!("\"{name}\""));
    let constructor = match &counts {
        Some(HeadCounts { queries, keys, size }) => target.spelled(
            "joined_heads",
            &[
                ("input", &parts[0].input),
                ("size", size),
                ("queries", queries),
                ("keys", keys),
                ("options", &options),
            ],
        ),
        None => target.spelled(
            "joined",
            &[("input", &parts[0].input), ("outputs", &outputs.join(", ")), ("options", &options)],
        ),
    };
    let is_part = |line: &CodeLine| matrix(line, target).is_some_and(|one| parts.contains(&one));
    let first = class.init.iter().position(is_part).unwrap_or_default();
    class.init.retain(|line| !is_part(line));
    class.init.insert(first, CodeLine::Text(format!("{joined} = {constructor}")));
    let body = &mut class.methods[products.method].body;
    for part in parts {
        let call = format!("self.{}({})", part.name, products.variable);
        map_texts(&mut body[products.first..=products.last], &|text| {
            text.replace(&call, &part.name)
        });
    }
    let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
    let call = target.spelled("parts", &[("joined", &joined), ("x", &products.variable)]);
    body.insert(products.first, CodeLine::Text(format!("{} = {call}", names.join(", "))));
    let shards = match &counts {
        Some(counts) => {
            count_heads(class, counts, &joined, first, target);
            ["\"q\"", "\"k\"", "\"v\""].map(str::to_owned).to_vec()
        }
        None => (0..parts.len()).map(|number| number.to_string()).collect(),
    };
    let names = names.into_iter().map(str::to_owned);
    JoinedMatrix { name, parts: names.zip(shards).collect() }
}

/// Takes the numbers of heads of a rank from the joined matrix.
fn count_heads(
    class: &mut Class,
    counts: &HeadCounts,
    joined: &str,
    first: usize,
    target: &Target,
) {
    for (n, word) in [(&counts.queries, "joined_queries"), (&counts.keys, "joined_keys")] {
        let number = target.spelled(word, &[("joined", joined)]);
        let of_method = n.replace("config.", "self.");
        let here = target.spelled("rank_heads_here", &[("n", &of_method)]);
        for method in &mut class.methods {
            map_texts(&mut method.body, &|text| text.replace(&here, &number));
        }
        let divided = target.spelled("rank_heads", &[("n", n)]);
        map_texts(&mut class.init[first..], &|text| text.replace(&divided, &number));
    }
    let mut unused: Vec<String> = Vec::new();
    for line in &class.init {
        if let CodeLine::Text(text) = line
            && let Some((name, value)) = text.split_once(" = ")
            && value == name.replace("self.", "config.")
            && uses(class, name) == 0
        {
            unused.push(text.clone());
        }
    }
    class.init.retain(|line| !is_text(line, |text| unused.iter().any(|one| one == text)));
}

/// Changes all texts of some lines.
fn map_texts(lines: &mut [CodeLine], change: &dyn Fn(&str) -> String) {
    for line in lines {
        match line {
            CodeLine::Text(text) => *text = change(text),
            CodeLine::If(condition, yes, no) => {
                *condition = change(condition);
                map_texts(yes, change);
                map_texts(no, change);
            }
            CodeLine::For(head, body) => {
                *head = change(head);
                map_texts(body, change);
            }
        }
    }
}
