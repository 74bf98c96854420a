//! Counts what makes code hard to read at first sight: closures with a name, several bindings in one `let`, and
//! bindings that do not say what they hold.

use syn::visit::{self, Visit};
use syn::{Expr, Local, Pat, PatIdent};

use super::model_names::{is_test_file, rust_files};
use super::type_names::is_test;
use crate::tool::{SOURCES, root};

/// Most closures with a name, most tuples of bindings and most vague bindings, for 1,000 lines.
const LIMITS: [(&str, f64); 3] = [("closures", 1.5), ("tuples", 1.0), ("vague", 1.0)];

/// Names that say which part a binding has in a sentence, and not what it holds.
const VAGUE: [&str; 17] = [
    "asked", "found", "had", "have", "its", "kept", "made", "most", "others", "own", "rest",
    "said", "shows", "theirs", "turn", "wanted", "whole",
];

/// Counts of one file, without its tests.
#[derive(Default)]
struct BindingCounts {
    closures: usize,
    tuples: usize,
    vague: usize,
}

impl Visit<'_> for BindingCounts {
    fn visit_item_mod(&mut self, item: &syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_local(&mut self, local: &Local) {
        let value = local.init.as_ref().map(|init| &*init.expr);
        match (&local.pat, value) {
            (Pat::Ident(_), Some(Expr::Closure(_))) => self.closures += 1,
            (Pat::Tuple(_), Some(Expr::Tuple(_))) => self.tuples += 1,
            _ => {}
        }
        visit::visit_local(self, local);
    }

    fn visit_pat_ident(&mut self, pattern: &PatIdent) {
        self.vague += usize::from(VAGUE.iter().any(|name| pattern.ident == name));
        visit::visit_pat_ident(self, pattern);
    }
}

fn counts(text: &str) -> BindingCounts {
    let mut counts = BindingCounts::default();
    counts.visit_file(&syn::parse_file(text).unwrap());
    counts
}

#[test]
fn bindings_say_what_they_hold() {
    let mut files = Vec::new();
    for folder in SOURCES {
        rust_files(&root().join(folder), &mut files);
    }
    let mut lines = 0;
    let mut totals = [0; 3];
    let mut densest: Vec<(usize, String)> = Vec::new();
    for path in files {
        let short = path.strip_prefix(root()).unwrap();
        if is_test_file(short) {
            continue;
        }
        let text = fs_err::read_to_string(&path).unwrap();
        let counts = counts(&text);
        let counts = [counts.closures, counts.tuples, counts.vague];
        lines += text.lines().filter(|line| !line.trim().is_empty()).count();
        for (total, count) in totals.iter_mut().zip(counts) {
            *total += count;
        }
        densest.push((counts.iter().sum(), format!("{}: {counts:?}", short.display())));
    }
    densest.sort_by(|a, b| b.cmp(a));
    let densest: Vec<&str> = densest.iter().take(10).map(|(_, line)| line.as_str()).collect();
    for ((name, limit), total) in LIMITS.iter().zip(totals) {
        let rate = 1e3 * total as f64 / lines as f64;
        assert!(
            rate <= *limit,
            "{name}: {rate:.2} in 1,000 lines, at most {limit}; name what a binding holds, and make a function of a \
             closure that is called more than once. Closures, tuples and vague names of the densest files:\n{}",
            densest.join("\n")
        );
    }
}

#[test]
fn every_form_of_a_binding_is_counted() {
    let text = "fn f() { let g = |x: u8| x; let (a, b) = (1, 2); let found = g(a); let Some(own) = h() else { return };
        for rest in 0..b {} let (c, d) = pair(); i.map(|most| most); match x { Y { made, .. } => {} } }
        #[cfg(test)] mod tests { fn t() { let found = |x| x; } }";
    let counts = counts(text);
    assert_eq!([counts.closures, counts.tuples, counts.vague], [1, 1, 5]);
}
