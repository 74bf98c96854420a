//! Rotation and attention.

use super::infer::show;
use super::{Infer, Kind, Rule, Signature};
use crate::eval::Fail;
use crate::graph::StateKind;
use crate::scalar::Scalar;

pub(super) fn rules() -> Vec<Rule> {
    let rope = Signature::new()
        .needs("x", Kind::Value)
        .needs("table", Kind::Rope)
        .word("layout", &["half", "interleaved", "interleaved_to_half"])
        .word("compute", &["activation", "f32", "qk_f32"]);
    let attend = Signature::new()
        .needs("q", Kind::Value)
        .needs("k", Kind::Value)
        .needs("v", Kind::Value)
        .needs("state", Kind::State)
        .needs("scale", Kind::Float)
        .may("window", Kind::Dim)
        .may("softcap", Kind::Float)
        .may("sinks", Kind::Tensor)
        .word("softmax", &["f32", "activation"])
        .flag("chunked", false);
    let temper = Signature::new()
        .needs("x", Kind::Value)
        .needs("every", Kind::Dim)
        .needs("by", Kind::Float)
        .takes("shift", Kind::Int, Scalar::Int(0));
    vec![
        Rule::new("rope", rope, infer_rope),
        Rule::new("attend", attend, infer_attend),
        Rule::new("temper", temper, infer_temper),
    ]
}

fn infer_temper(call: &mut Infer<'_>) -> Result<(), Fail> {
    let x = call.input("x")?;
    call.output(x.shape, x.dtype);
    Ok(())
}

fn infer_rope(call: &mut Infer<'_>) -> Result<(), Fail> {
    let x = call.input("x")?;
    let table = call.rope("table")?;
    let (name, dim) = (table.name.clone(), table.dim);
    if x.shape.len() != 2 {
        return Err(call
            .error("x", "`rope` rotates heads")
            .label(format!("`{}` is {}, expected [heads, size]", x.name, show(&x.shape)))
            .help("split the value first: `heads(x, n)`")
            .into());
    }
    if dim > x.last() {
        return Err(call
            .error(
                "table",
                format!("the table `{name}` rotates {dim} numbers of a head that has {}", x.last()),
            )
            .label(format!("`{}` is {}", x.name, show(&x.shape)))
            .into());
    }
    call.output(x.shape, x.dtype);
    Ok(())
}

fn infer_attend(call: &mut Infer<'_>) -> Result<(), Fail> {
    let (q, k, v) = (call.input("q")?, call.input("k")?, call.input("v")?);
    for (param, value) in [("q", &q), ("k", &k), ("v", &v)] {
        if value.shape.len() != 2 {
            return Err(call
                .error(param, "`attend` works on heads")
                .label(format!(
                    "`{}` is {}, expected [heads, size]",
                    value.name,
                    show(&value.shape)
                ))
                .help("split the value first: `heads(x, n)`")
                .into());
        }
    }
    if q.shape[1] != k.shape[1] {
        return Err(call.misfit("queries and keys differ in size", &q, &k).into());
    }
    if k.shape[0] != v.shape[0] {
        return Err(call.misfit("there are not as many keys as values", &k, &v).into());
    }
    if q.shape[0] % k.shape[0] != 0 {
        return Err(call.misfit("query heads are not a multiple of key heads", &q, &k).into());
    }
    if call.flag("chunked") && !call.given("window") {
        return Err(call
            .error("chunked", "chunks are as long as the window, and there is none")
            .into());
    }
    call.state("state", StateKind::Attention, &[("k", k.shape), ("v", v.shape.clone())])?;
    if call.given("sinks") {
        call.weight("sinks", "sinks", "", &[q.shape[0]])?;
    }
    call.drop_attr("sinks");
    call.output(vec![q.shape[0] * v.shape[1]], q.dtype);
    Ok(())
}
