//! Derives specs from records: `derive OUT RECORD.json...` writes `OUT/NAME.yaml` and prints what is left open.

use onboard_derive::record::Record;
use onboard_derive::roll::derive;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let out = arguments.next().expect("a folder to write");
    for file in arguments {
        let name = std::path::Path::new(&file)
            .file_stem()
            .and_then(|stem| stem.to_str())
            .unwrap_or("derived")
            .to_owned();
        let text = fs_err::read_to_string(&file).expect("a record");
        let record: Record = match serde_json::from_str(&text) {
            Ok(record) => record,
            Err(error) => {
                println!("{name}: {error}");
                continue;
            }
        };
        let Ok(derived) = std::panic::catch_unwind(|| derive(&record, &name)) else {
            println!("{name}: 999 holes");
            continue;
        };
        fs_err::write(format!("{out}/{name}.yaml"), &derived.spec).expect("a spec");
        println!("{name}: {} holes", derived.holes.len());
        for hole in derived.holes.iter().take(12) {
            println!("    {hole}");
        }
    }
}
