"""Muon in the trainers of other packages: transformers, Lightning and Accelerate.

Nothing is imported from here: ``muonlab.integrations.transformers`` and ``muonlab.integrations.lightning`` import their
package, and ``accelerator.prepare(model, optimizer)`` of Accelerate needs no help.
"""
