//! Filters that read items: nothing to read is an error, and lazy results are read once.

use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use super::charge::{COMPARISONS, whole};
use super::control::{LoopItems, check};
use super::generator::Generator;

/// Adds the filters of the engine that read items, with the behaviour of Jinja's.
pub(super) fn add_filters(env: &mut Environment<'static>) {
    // A name with `!` cannot be written in a template.
    env.add_filter("map!", filters::map);
    env.add_filter("select!", filters::select);
    env.add_filter("reject!", filters::reject);
    env.add_filter("selectattr!", filters::selectattr);
    env.add_filter("rejectattr!", filters::rejectattr);
    env.add_filter("unique!", filters::unique);
    env.add_filter("batch!", filters::batch);
    env.add_filter("slice!", filters::slice);
    env.add_filter("list!", filters::list);
    env.add_filter("sort!", filters::sort);
    env.add_filter("sum!", filters::sum);
    env.add_filter("min!", filters::min);
    env.add_filter("max!", filters::max);
    env.add_filter("groupby!", filters::groupby);
    env.add_filter("dictsort!", filters::dictsort);
    for name in ["map", "select", "reject", "selectattr", "rejectattr", "unique", "batch", "slice"]
    {
        env.add_filter(
            name,
            move |state: &mut State<'_, '_>, value: Value, arguments: Rest<ValueOrKwargs>| {
                // Jinja's filters of single items do not look at what is false.
                let skips = !["unique", "batch", "slice"].contains(&name) && !value.is_true();
                let items: Vec<Value> = if skips {
                    Vec::new()
                } else {
                    apply(state, name, value, arguments)?.try_iter()?.collect()
                };
                Ok::<_, Error>(Value::from_object(Generator::new(items)))
            },
        );
    }
    for name in ["list", "sort", "sum", "min", "max", "groupby", "dictsort"] {
        env.add_filter(
            name,
            move |state: &mut State<'_, '_>, value: Value, arguments: Rest<ValueOrKwargs>| {
                apply(state, name, value, arguments)
            },
        );
    }
    env.add_filter("_items_of_loop", |value: Value| {
        if value.is_none() {
            return Err(not_iterable());
        }
        // A loop knows its length, so Jinja reads all items of a generator before.
        let items = match value.downcast_object_ref::<Generator>() {
            Some(_) => value.try_iter()?.collect(),
            None => value,
        };
        // Other kinds are few characters, or no items: the engine says so.
        let lists = [ValueKind::Seq, ValueKind::Map, ValueKind::Iterable];
        if !lists.contains(&items.kind()) {
            return Ok(items);
        }
        Ok(Value::from_object(LoopItems(items)))
    });
}

fn apply(
    state: &mut State<'_, '_>,
    name: &str,
    value: Value,
    arguments: Rest<ValueOrKwargs>,
) -> Result<Value, Error> {
    check()?;
    if value.is_none() {
        return Err(not_iterable());
    }
    if name == "groupby" && value.kind() == ValueKind::String && value.is_true() {
        let why = "`groupby` reads attributes, which letters of a text do not have";
        return Err(Error::new(ErrorKind::InvalidOperation, why));
    }
    if ["sort", "unique", "min", "max", "groupby", "dictsort"].contains(&name) {
        whole(state, &value, COMPARISONS)?;
    }
    let mut args = vec![value];
    args.extend(arguments.0.into_iter().map(Value::from));
    state.apply_filter(&format!("{name}!"), &args)
}

fn not_iterable() -> Error {
    Error::new(ErrorKind::InvalidOperation, "none is not iterable")
}
