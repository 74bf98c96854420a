//! Derives specs from records: `derive OUT RECORD.json...` writes `OUT/NAME.yaml` and prints what is left open.

use std::io::Write as _;
use std::path::Path;

use onboard_derive::record::Record;
use onboard_derive::roll::derive;

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let Some(out) = arguments.next() else {
        return Err(std::io::Error::other("usage: derive OUT RECORD.json..."));
    };
    let mut console = std::io::stdout().lock();
    for file in arguments {
        let name = Path::new(&file).file_stem().and_then(|stem| stem.to_str()).unwrap_or("derived");
        let record: Record = serde_json::from_str(&fs_err::read_to_string(&file)?)?;
        let derived = derive(&record, name);
        fs_err::write(format!("{out}/{name}.yaml"), &derived.spec)?;
        writeln!(console, "{name}: {} holes", derived.holes.len())?;
        for hole in &derived.holes {
            writeln!(console, "    {hole} (`{}`)\n        {}", hole.module, hole.tree)?;
        }
    }
    Ok(())
}
