//! Policies of the cluster that are written as expressions: what may be stored, said by objects instead of plug-ins.
//!
//! [`expressions`] says which names their expressions know and makes programs of them; [`policy`] reads policies and their
//! bindings; [`evaluate`] runs the programs of one set over the inputs of one request; [`decision`] says what a policy makes of
//! all that; [`mutation`] is what a policy wants to make of an object; [`request`] is the request as expressions see it; [`authorizer`] is how they ask who may do what; [`type_checking`] holds
//! expressions against the types of the objects that a policy is about.

pub mod authorizer;
pub mod decision;
pub mod evaluate;
pub mod expressions;
pub mod mutation;
pub mod policy;
pub mod request;
#[cfg(test)]
mod tests;
pub mod type_checking;
