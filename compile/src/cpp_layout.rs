//! Lines of C++ that are too long, in several.

/// The depth of brackets, and if a text is under way, at each letter.
fn depths(line: &str) -> Vec<Option<usize>> {
    let mut depth = 0_usize;
    let mut quoted = false;
    let mut escaped = false;
    let mut all = Vec::new();
    for letter in line.bytes() {
        if quoted {
            quoted = letter != b'"' || escaped;
            escaped = letter == b'\\' && !escaped;
            all.push(None);
            continue;
        }
        match letter {
            b'"' => quoted = true,
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        all.push(Some(depth));
    }
    all
}

/// Returns the place where a line is best broken: late, and outside of brackets.
fn best_break(line: &str, start: usize, width: usize) -> Option<usize> {
    let depths = depths(line);
    let before = [" ? ", " : ", " && ", " || "];
    let places = (start + 1..line.len().min(width + 1)).filter_map(|at| {
        let depth = depths[at - 1]?;
        let is_place = line[..at].ends_with(", ")
            || before.iter().any(|sign| line[at - 1..].starts_with(sign));
        is_place.then_some((at, depth))
    });
    places.max_by_key(|(at, depth)| at.saturating_sub(24 * depth)).map(|(at, _)| at)
}

/// Breaks lines that are longer than a width; what follows is indented by two steps.
pub(crate) fn broken(text: &str, width: usize) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let start = line.len() - line.trim_start().len();
        let mut left = line.to_owned();
        let mut from = start;
        while left.len() > width && left.is_ascii() && !left.trim_start().starts_with("//") {
            let Some(at) = best_break(&left, from, width) else { break };
            lines.push(left[..at].trim_end().to_owned());
            from = start + 8;
            left = format!("{}{}", " ".repeat(from), left[at..].trim_start());
        }
        lines.push(left);
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::broken;

    #[test]
    fn long_lines_are_broken_outside_of_brackets() {
        let line = "    Linear x{at(\"a, b\", c), first(one, two), last};";
        assert_eq!(broken(line, 60), format!("{line}\n"));
        let text = "    Linear x{at(\"a, b\", c), first(one, two),\n            last};\n";
        assert_eq!(broken(line, 50), text);
        let text = "    Linear x{at(\"a, b\", c),\n            first(one, two), last};\n";
        assert_eq!(broken(line, 40), text);
        let choice = "    Value x = some ? first : second;";
        assert_eq!(broken(choice, 30), "    Value x = some ? first\n            : second;\n");
        let comment = "    // Words, and more words, without an end.";
        assert_eq!(broken(comment, 20), format!("{comment}\n"));
    }
}
