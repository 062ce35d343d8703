"""Trace one prediction: the attribution graph of a transcoder's features, down to the heads that carry each link.

In the order of the algorithm (`trace.py`):

    models/linearise         run the prompt; freeze attention patterns and norm denominators
    target_logits, graph     the contribution of every source to every target
    influence                prune nodes and links
    head_shares, paths       split each link over the heads that carry it
    clusters, contexts       what the features respond to
    qk_attribution           why a head attends where it does
    validation, ablations    validation by intervention: ablate, predict, measure (total_effects, graph_predictions)
    intervene                interventions by hand
    nodes, schema            tensors to data
    result, traces, export   `Trace`, `Traces`; JSON for circuit-tracer and Neuronpedia
    graph_file               that JSON, read: `read_graph`
"""
