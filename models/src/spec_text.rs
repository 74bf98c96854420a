//! Splits the text of a spec at its keys, for generating files from it.

/// Top-level key of a file, with its lines and the comment above it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecSection<'t> {
    /// Name of the key.
    pub key: &'t str,
    /// Comment lines, then the lines of the key.
    pub lines: Vec<&'t str>,
}

/// Returns the sections of a file in order. Comments that no key follows directly belong to the file, and
/// are left out.
pub fn sections(text: &str) -> Vec<SpecSection<'_>> {
    let mut all: Vec<SpecSection<'_>> = Vec::new();
    let mut above: Vec<&str> = Vec::new();
    for line in text.lines() {
        match line.chars().next() {
            None => above.clear(),
            Some('#') => above.push(line),
            Some(' ' | '-') => {
                if let Some(last) = all.last_mut() {
                    last.lines.append(&mut above);
                    last.lines.push(line);
                }
            }
            Some(_) => {
                let key = line.split(':').next().unwrap_or(line).trim();
                let mut lines = std::mem::take(&mut above);
                lines.push(line);
                all.push(SpecSection { key, lines });
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_cut_at_its_keys() {
        let text = "# of the file\n\nspec: 1\n# of dims\ndims:\n  a: b\n\n  c: d\nmodel: |\n  x\n";
        let cut: Vec<(&str, usize)> =
            sections(text).iter().map(|part| (part.key, part.lines.len())).collect();
        assert_eq!(cut, [("spec", 1), ("dims", 4), ("model", 2)]);
    }
}
